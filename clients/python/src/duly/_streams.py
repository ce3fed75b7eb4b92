"""Standard input and output of a worker carry the messages of duly.

They are taken when the package is imported, before other code runs: what it prints goes to standard error, the log of
the worker, and its child processes inherit neither.
"""

import io
import os
import stat
import sys
import traceback
from types import TracebackType
from typing import Optional, Tuple, Type

from . import _messages

# Set for child processes, whose streams are their own.
_TAKEN = "DULY_WORKER_TAKEN"
_taken: Optional[Tuple[int, int]] = None


def is_taken() -> bool:
    """Whether this process has taken its streams."""
    return _taken is not None


def take() -> Tuple[int, int]:
    """Takes the streams, unless that is done, and returns descriptors for the messages, in and out."""
    global _taken
    if _taken is not None:
        return _taken
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
    os.environ[_TAKEN] = str(os.getpid())
    _taken = (messages_in, messages_out)
    return _taken


def take_at_import() -> None:
    """Takes the streams if this process is a worker: duly has started it, and both are pipes."""
    if "DULY_WORKER" not in os.environ or _TAKEN in os.environ:
        return
    try:
        pipes = all(stat.S_ISFIFO(os.fstat(descriptor).st_mode) for descriptor in (0, 1))
    except OSError:
        return
    if pipes:
        take()
        _report_crashes()


def _report_crashes() -> None:
    """Has a crash of the process end with one line that says why: duly shows the last line as the error of the runs."""
    usual = sys.excepthook

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        usual(kind, error, trace)
        last = "".join(traceback.format_exception_only(kind, error)).rstrip("\n")
        described = _messages.described(error)
        if hasattr(error, "exceptions") or "\n" in last:
            sys.stderr.write(" ".join(described.split("\n")) + "\n")

    sys.excepthook = hook
