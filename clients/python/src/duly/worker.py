"""A worker: handlers by name, and the loop that runs them."""

import os
import re
import stat
import sys
from typing import Any, Callable, Dict, Mapping, Optional, TypeVar

from . import _streams
from ._session import Session
from .run import Run

Handler = Callable[[Run], Any]
H = TypeVar("H", bound=Handler)
_MAX_HANDLERS = 1000
_MAX_CONCURRENCY = 1000


class Worker:
    """Runs handlers for `duly run --worker`, up to `concurrency` runs at once.

    A handler is a function of one argument, the `Run`. Plain functions run in threads, coroutine functions on one
    asyncio loop. What a handler returns is the result of the run, as JSON. An exception fails the attempt, which is
    retried, except after `GiveUp`.
    """

    def __init__(self, concurrency: int = 1) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int):
            raise TypeError(f"expected a whole number as concurrency, found {concurrency!r}")
        if not 1 <= concurrency <= _MAX_CONCURRENCY:
            raise ValueError(f"expected a concurrency of 1 to {_MAX_CONCURRENCY}, found {concurrency}")
        self.concurrency = concurrency
        self._handlers: Dict[str, Handler] = {}

    def handler(self, name: str) -> Callable[[H], H]:
        """Decorates a function as the handler with this name."""

        def decorate(function: H) -> H:
            self.add_handler(name, function)
            return function

        return decorate

    def add_handler(self, name: str, function: Handler) -> None:
        """Makes a function the handler with this name."""
        if not isinstance(name, str) or not name:
            raise ValueError(f"expected a text as the name of a handler, found {name!r}")
        if len(name.encode()) > 200 or re.search("[\x00-\x1f\x7f-\x9f\ufffd]", name):
            wanted = "1 to 200 bytes without control characters or U+FFFD"
            raise ValueError(f"expected {wanted} as the name of a handler, found {name[:200]!r}")
        if not callable(function):
            raise TypeError(f"expected a function as handler {name!r}, found {type(function).__name__}")
        if name in self._handlers:
            raise ValueError(f"cannot add handler {name!r}: the worker has a handler with this name")
        self._handlers[name] = function

    def run(self) -> None:
        """Runs handlers until the scheduler ends the worker, then returns. Call it once in a process.

        Meanwhile stdin is empty, and stdout goes to stderr, the log of the worker: also what a child process of a
        handler prints. If the scheduler has died or broken the protocol, the process ends at once, with `os._exit`:
        no `finally` and no exit handler runs.
        """
        if not 1 <= len(self._handlers) <= _MAX_HANDLERS:
            raise ValueError(f"expected 1 to {_MAX_HANDLERS} handlers, found {len(self._handlers)}")
        if not _streams.is_taken() and stat.S_ISCHR(os.fstat(0).st_mode):
            # A terminal, or /dev/null.
            raise RuntimeError("a worker reads messages from its standard input: start it with duly run --worker")
        usual = sys.stdout
        session = Session(dict(self._handlers), self.concurrency, *_streams.take(), _exit)
        try:
            session.run()
        finally:
            sys.stdout = usual


def _exit(how: str, reason: Optional[str], running: int) -> None:
    """Ends the process at once: nothing that it does is recorded any more. Exit handlers are not called."""
    if how == "stopped":
        return
    if how == "gone" and running:
        reason = reason or f"the scheduler has gone, and {running} runs are cut short"
    try:
        if reason is not None:
            sys.stderr.write(f"duly: {reason}\n")
        sys.stderr.flush()
    except Exception:
        pass  # stderr is closed, and there is no other place for the reason
    finally:
        os._exit(0 if reason is None else 1)


def run_worker(handlers: Mapping[str, Handler], concurrency: int = 1) -> None:
    """Runs these handlers until the scheduler ends the worker, as `Worker.run`."""
    worker = Worker(concurrency)
    for name, function in handlers.items():
        worker.add_handler(name, function)
    worker.run()
