"""The exchange with the scheduler: reads messages, carries out attempts, and answers with their ends."""

import asyncio
import functools
import inspect
import os
import threading
import traceback
from queue import Empty, SimpleQueue
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import _messages
from ._loop import Loop
from ._output import Output
from .errors import Cancelled, GiveUp, ProtocolError, RetryAfter, Skip
from .run import Run, calling

_CHUNK = 256 * 1024
_PROTOCOL = 1
# How long a process that holds the output of a scheduler that has ended is waited for, in seconds.
_LAST = 5


class Session:
    """The life of a worker, from `hello` to its end."""

    def __init__(
        self,
        handlers: Mapping[str, Callable[[Run], Any]],
        concurrency: int,
        messages_in: int,
        messages_out: int,
        left: Callable[[str, Optional[str], int], None],
        loop: Optional[asyncio.AbstractEventLoop] = None,
    ) -> None:
        """`left`: called when the scheduler is gone, after it had stopped this worker ("stopped") or not ("gone"), or
        when a message was wrong ("failed"); with the reason and the number of attempts. `loop`: the loop for coroutine functions; otherwise they get one."""
        self._handlers = handlers
        self._on_loop = {name for name, function in handlers.items() if _is_async(function)}
        self._concurrency = concurrency
        self._input = messages_in
        self._output = Output(messages_out, self._broken)
        self._database: Optional[str] = None
        # Protected by the lock of the output, as `_stopping`.
        self._attempts: Dict[Tuple[int, int], Run] = {}
        self._in_threads = 0
        self._stopping = False
        self._over = False
        self._left = left
        self._application_loop = loop
        #: Called when the scheduler has answered `hello`.
        self.on_welcome: Callable[[], object] = lambda: None
        #: The session is over, and no handler runs any more.
        self.idle = threading.Event()
        self._finished = threading.Event()
        self._threads = 0
        self._jobs: "SimpleQueue[Optional[Run]]" = SimpleQueue()
        self._loop: Optional[Loop] = None
        # Runs of the chunk that is being read, for the loop.
        self._for_loop: List[Run] = []

    def run(self) -> None:
        """Returns after `stop` and the last attempt."""
        self.begin()
        self._finished.wait()
        self._output.flush()
        if self._loop is not None:
            self._loop.close()

    def begin(self) -> None:
        """Says hello, and begins to read."""
        hello = _messages.line(
            "hello", protocol=_PROTOCOL, handlers=list(self._handlers), concurrency=self._concurrency
        )
        if len(hello) > _messages.MAX_LINE:
            raise ValueError("the names of the handlers are longer than 1 MiB together")
        with self._output.lock:
            self._output.add(hello)
        self._output.flush()
        self._reader = threading.Thread(target=self._read, name="duly-reader", daemon=True)
        self._reader.start()

    def end(self) -> None:
        """Returns when everything that the scheduler, whose process has ended, had written is read."""
        self._reader.join(_LAST)
        self._leave("gone", None)

    def close(self) -> None:
        """Writes nothing any more: the descriptor may be closed."""
        self._output.close()

    # ------------------------------------------------------------------------------------------------- messages --

    def _read(self) -> None:
        try:
            self._read_lines()
        except ProtocolError as error:
            self._leave("failed", f"the scheduler has broken the protocol: {error}")
        except BaseException:
            self._leave("failed", f"the worker cannot read messages: {traceback.format_exc()}")

    def _read_lines(self) -> None:
        begun: List[bytes] = []
        length = 0
        while True:
            chunk = os.read(self._input, _CHUNK)
            if not chunk:
                # After a stop the program may do more.
                self._leave("stopped" if self._finished.is_set() else "gone", None)
                return
            *complete, rest = chunk.split(b"\n")
            for part in complete:
                line = b"".join([*begun, part]) if begun else part
                begun, length = [], 0
                if len(line) >= _messages.MAX_LINE:
                    raise ProtocolError(f"expected a line of at most {_messages.MAX_LINE} bytes, found a longer one")
                if line and not line.isspace():
                    self._take(_messages.parse(line))
            if rest:
                begun.append(rest)
                length += len(rest)
                if length >= _messages.MAX_LINE:
                    raise ProtocolError(f"expected a line of at most {_messages.MAX_LINE} bytes, found a longer one")
            if self._for_loop and self._loop is not None:
                self._loop.start(self._for_loop)
                self._for_loop = []

    def _take(self, message: Dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "run" and self._database is not None:
            self._begin(Run(message, self._output, self._database))
        elif kind == "cancel":
            self._cancel(message)
        elif kind == "effect":
            with self._output.lock:
                run = self._attempt(message)
            if run is not None:
                run._answer(message)
        elif kind == "ping":
            with self._output.lock:
                self._output.add(b'{"type":"pong"}\n')
            self._output.flush_later()
        elif kind == "pong":
            pass
        elif kind == "stop":
            with self._output.lock:
                self._stopping = True
                self._check_finished()
        elif kind == "welcome" and self._database is None:
            if _messages.integer(message, "protocol") != _PROTOCOL:
                raise ProtocolError(f"expected protocol {_PROTOCOL}, found {message['protocol']}")
            self._database = _messages.string(message, "database")
            self.on_welcome()
        elif kind == "error":
            self._leave("failed", f"the scheduler ends this worker: {_messages.string(message, 'error')}")
        else:
            raise ProtocolError(f"expected another message, found {kind[:80]!r}")

    def has(self, run: Run) -> bool:
        """Whether this session has the attempt, which has not ended."""
        with self._output.lock:
            return self._attempts.get((run.run_id, run.attempt)) is run

    def _attempt(self, message: Dict[str, Any]) -> Optional[Run]:
        """Returns the attempt that a message names, unless it has ended. The caller holds the lock."""
        return self._attempts.get((_messages.integer(message, "run"), _messages.integer(message, "attempt")))

    def _begin(self, run: Run) -> None:
        key = (run.run_id, run.attempt)
        if run.handler not in self._handlers:
            raise ProtocolError(f"expected a run for one of the handlers, found {run.handler[:80]!r}")
        in_thread = run.handler not in self._on_loop
        with self._output.lock:
            if self._over:
                return
            if key in self._attempts:
                raise ProtocolError(f"found attempt {run.attempt} of run {run.run_id} twice")
            if len(self._attempts) >= self._concurrency:
                raise ProtocolError(f"expected at most {self._concurrency} runs at once, found another one")
            self._attempts[key] = run
            self._in_threads += in_thread
            # Each attempt has at most one thread, so that a thread is free, or is about to be.
            another = in_thread and self._in_threads > self._threads
            self._threads += another
        if in_thread:
            self._jobs.put(run)
        else:
            if self._loop is None:
                self._loop = Loop(self._output, self._handlers, self._failed, self._ended, self._application_loop)
            self._for_loop.append(run)
        if another:
            threading.Thread(target=self._work, name=f"duly-{self._threads}", daemon=True).start()

    def _cancel(self, message: Dict[str, Any]) -> None:
        reason = _messages.string(message, "reason")
        with self._output.lock:
            run = self._attempt(message)
        if run is None:
            return
        run.cancelled._cancel(reason)
        if run.handler in self._on_loop and self._loop is not None:
            self._loop.cancel(run)

    # ------------------------------------------------------------------------------------------------- attempts --

    def _work(self) -> None:
        """A thread for plain functions."""
        while True:
            try:
                run = self._jobs.get_nowait()
            except Empty:
                # The last end. With a next run it is written together with its `begin`.
                self._output.flush()
                run = self._jobs.get()
            if run is None:
                return
            self._carry_out(run)

    def _carry_out(self, run: Run) -> None:
        try:
            run.cancelled.raise_if_set()
            with self._output.lock:
                self._output.add(_messages.begin(run.run_id, run.attempt))
            # Before the handler is called: an attempt whose worker dies counts only if it has begun.
            self._output.flush()
            calling.set(run)
            result = self._handlers[run.handler](run)
        except BaseException as error:
            self._output.leave_fork(1)
            self._failed(run, error)
        else:
            self._output.leave_fork(0)
            self._ended(run, result)

    def _ended(self, run: Run, result: object) -> None:
        """Sends `done`. Not flushed."""
        try:
            line = _done(run, result)
        except _messages.NotJson as error:
            kind = type(result).__name__
            self._failed(run, GiveUp(f"the handler has returned a {kind} that is not JSON: {error}"))
            return
        if len(line) > _messages.MAX_LINE:
            limit = "longer than 1 MiB"
            self._failed(run, GiveUp(f"the handler has succeeded, and its result is {limit}: return a shorter one"))
            return
        self._end(run, line)

    def _failed(self, run: Run, error: BaseException) -> None:
        """Sends `failed`, and the stack of an unexpected exception to the log. Not flushed."""
        keys: Dict[str, object] = {"run": run.run_id, "attempt": run.attempt}
        if isinstance(error, (GiveUp, RetryAfter, Skip, Cancelled)):
            text = _messages.message_of(error) + _messages.caused_by(error)
        else:
            text = _messages.describe(error)
            stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            log = _messages.line("log", level="debug", run=run.run_id, text=_messages.text(stack))
            with self._output.lock:
                self._output.add(log)
        if isinstance(error, GiveUp):
            keys["retry"] = False
        elif isinstance(error, Skip):
            keys["retry"] = "skip"
        elif isinstance(error, RetryAfter):
            keys["retry"] = error.text
        self._end(run, _messages.line("failed", error=_messages.text(text), **keys))

    def _end(self, run: Run, line: bytes) -> None:
        # In one step: the scheduler may hand over another run as soon as it has the line.
        with self._output.lock:
            del self._attempts[run.run_id, run.attempt]
            self._in_threads -= run.handler not in self._on_loop
            run._end()
            if self._over:
                self._check_idle()
                return
            self._output.add(line)
            self._check_finished()

    def _check_finished(self) -> None:
        if self._stopping and not self._attempts:
            self._finished.set()

    # --------------------------------------------------------------------------------------------------- the end --

    def _broken(self, error: OSError) -> None:
        self._leave("failed", f"the scheduler does not read any more: {error}")

    def _leave(self, how: str, reason: Optional[str]) -> None:
        """Asks the handlers to stop: nothing that they do is recorded any more."""
        with self._output.lock:
            if self._over:
                return
            self._over = True
            attempts = list(self._attempts.values())
            for run in attempts:
                run._end()
            self._check_idle()
        for run in attempts:
            run.cancelled._cancel("shutdown")
            if run.handler in self._on_loop and self._loop is not None:
                self._loop.cancel(run)
        self._left(how, reason, len(attempts))

    def _check_idle(self) -> None:
        if not self._attempts:
            for _ in range(self._threads):
                self._jobs.put(None)
            self.idle.set()


def _done(run: Run, result: object) -> bytes:
    if result is None:
        return b'{"type":"done","run":%d,"attempt":%d}\n' % (run.run_id, run.attempt)
    value = _messages.to_json(result)
    return b'{"type":"done","run":%d,"attempt":%d,"result":%b}\n' % (run.run_id, run.attempt, value)


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))
