"""The asyncio loop, in a thread of its own, on which coroutine functions run."""

import asyncio
import functools
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional

from . import _messages
from ._output import Output
from .errors import Cancelled
from .run import Run, calling


class HandlerExit(Exception):
    """A handler has called `sys.exit`, which would end the loop."""


class Loop:
    """Runs attempts as tasks. `failed` and `ended` send their ends."""

    def __init__(
        self,
        output: Output,
        handlers: Mapping[str, Callable[[Run], Any]],
        failed: Callable[[Run, BaseException], None],
        ended: Callable[[Run, object], None],
        loop: Optional[asyncio.AbstractEventLoop] = None,
    ) -> None:
        self._output = output
        self._handlers = handlers
        self._failed = failed
        self._ended = ended
        self._thread: Optional[threading.Thread]
        self._tasks: Dict[Run, "asyncio.Task[Any]"] = {}
        self._flushes = False
        if loop is not None:
            self._loop, self._thread = loop, None
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="duly-loop", daemon=True)
        self._thread.start()

    def start(self, runs: List[Run]) -> None:
        """Starts attempts."""
        self._loop.call_soon_threadsafe(self._start, runs)

    def cancel(self, run: Run) -> None:
        """Cancels the task of an attempt. If it has none yet, it gets none."""
        self._loop.call_soon_threadsafe(self._cancel, run)

    def close(self) -> None:
        """Ends the loop and the tasks that handlers have left. A task that ignores this has five seconds."""
        if self._thread is None:
            return  # the loop of the application
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _start(self, runs: List[Run]) -> None:
        ready = []
        for run in runs:
            run._loop_thread = threading.get_ident()
            if run.cancelled.is_set():
                self._failed(run, Cancelled(run.cancelled.reason or "asked"))
            else:
                ready.append(run)
        with self._output.lock:
            for run in ready:
                self._output.add(_messages.begin(run.run_id, run.attempt))
        # Before the handlers are called: an attempt whose worker dies counts only if it has begun.
        self._output.flush()
        for run in ready:
            task = self._loop.create_task(self._call(run))
            self._tasks[run] = task
            task.add_done_callback(functools.partial(self._done, run))

    async def _call(self, run: Run) -> Any:
        calling.set(run)
        try:
            return await self._handlers[run.handler](run)
        except (SystemExit, KeyboardInterrupt) as error:
            raise HandlerExit(f"the handler has raised {type(error).__name__}") from error

    def _cancel(self, run: Run) -> None:
        task = self._tasks.get(run)
        if task is not None:
            task.cancel()

    def _done(self, run: Run, task: "asyncio.Task[Any]") -> None:
        del self._tasks[run]
        reason = run.cancelled.reason
        if task.cancelled():
            unasked = asyncio.CancelledError("the task of the handler was cancelled")
            self._failed(run, Cancelled(reason) if reason else unasked)
        else:
            error = task.exception()
            if error is not None:
                self._failed(run, error)
            else:
                self._ended(run, task.result())
        # What ends in the same turn of the loop is written together.
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        self._output.flush()
