"""The standard output of a worker: complete lines, as many as wait in one write."""

import os
import threading
from queue import SimpleQueue
from typing import Callable, List, Optional


class Output:
    """Lines for the scheduler, from any thread.

    `lock` also protects which attempts exist: no line about an attempt may follow its end. A process that a handler
    has forked writes nothing: it is not the worker.
    """

    def __init__(self, descriptor: int, broken: Callable[[OSError], None]) -> None:
        self.lock = threading.Lock()
        self._process = os.getpid()
        self._descriptor = descriptor
        self._broken = broken
        self._waiting: List[bytes] = []
        # What a broken pipe calls may close.
        self._writing = threading.RLock()
        self._later: Optional["SimpleQueue[None]"] = None

    def add(self, line: bytes) -> None:
        """Adds a line to what waits. The caller holds `lock`, and calls `flush` after it has released it."""
        self._waiting.append(line)

    def flush(self) -> None:
        """Writes what waits. If the pipe is full, waits for the scheduler."""
        if os.getpid() != self._process:
            # Its copies of the locks may be held by threads that it does not have.
            return
        with self._writing:
            with self.lock:
                batch, self._waiting = self._waiting, []
            rest = memoryview(b"".join(batch))
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                self._broken(error)

    def close(self) -> None:
        """Writes nothing any more. Its descriptor may then be closed, and be that of another file."""
        with self._writing:
            self._descriptor = -1

    def leave_fork(self, status: int) -> None:
        """Ends this process if a handler has forked it: what it returns is not the end of an attempt."""
        if os.getpid() != self._process:
            os._exit(status)

    def flush_later(self) -> None:
        """Has another thread write what waits: for the thread that reads, which must not wait."""
        if self._later is None:
            self._later = SimpleQueue()
            asked = (self._later,)
            threading.Thread(target=self._flush_for_others, args=asked, name="duly-writer", daemon=True).start()
        self._later.put(None)

    def _flush_for_others(self, asked: "SimpleQueue[None]") -> None:
        while True:
            asked.get()
            self.flush()
