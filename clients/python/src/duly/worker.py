"""A worker: handlers by name, and the loop that runs them."""

import io
import os
import sys
from typing import Any, Callable, Dict, Mapping, TypeVar

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
        if os.isatty(0):
            raise RuntimeError("a worker reads messages from its standard input: start it with duly run --worker")
        usual = sys.stdout
        if usual is not None:
            usual.flush()
            if isinstance(usual, io.TextIOWrapper):
                usual.reconfigure(line_buffering=True)  # who holds it writes to the log from now on
        # Copies: neither handlers nor their child processes can read or write the messages.
        messages_in, messages_out = os.dup(0), os.dup(1)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        try:
            Session(dict(self._handlers), self.concurrency, messages_in, messages_out).run()
        finally:
            sys.stdout = usual


def run_worker(handlers: Mapping[str, Handler], concurrency: int = 1) -> None:
    """Runs these handlers until the scheduler ends the worker, as `Worker.run`."""
    worker = Worker(concurrency)
    for name, function in handlers.items():
        worker.add_handler(name, function)
    worker.run()
