"""Handlers and tasks for duly, a durable scheduler on one SQLite file.

A worker runs handlers that `duly run --worker` calls:

    import duly

    worker = duly.Worker(concurrency=4)

    @worker.handler("mail")
    def mail(run: duly.Run) -> object:
        return {"sent": run.payload["to"]}

    worker.run()

`add` and `trigger` write tasks into the database, also within a transaction of the application.
"""

from . import _streams

# Before other code runs.
_streams.take_at_import()

from .errors import (  # noqa: E402
    Cancelled,
    EffectInDoubt,
    EffectRefused,
    Error,
    GiveUp,
    InvalidTask,
    ProgramError,
    ProtocolError,
    RetryAfter,
    Skip,
    TaskExists,
    UnknownRun,
    UnknownTask,
    UnusableDatabase,
)
from .client import AsyncClient, Client  # noqa: E402
from .run import Cancellation, Performed, Run  # noqa: E402
from .start import Application, AsyncApplication, Exit, start  # noqa: E402
from .tasks import add, trigger  # noqa: E402
from .worker import Worker, run_worker  # noqa: E402

__all__ = [
    "Application",
    "AsyncApplication",
    "AsyncClient",
    "Cancellation",
    "Cancelled",
    "Client",
    "EffectInDoubt",
    "EffectRefused",
    "Error",
    "Exit",
    "GiveUp",
    "InvalidTask",
    "Performed",
    "ProgramError",
    "ProtocolError",
    "RetryAfter",
    "Skip",
    "Run",
    "TaskExists",
    "UnknownRun",
    "UnknownTask",
    "UnusableDatabase",
    "Worker",
    "add",
    "run_worker",
    "start",
    "trigger",
]
__version__ = "0.1.0"
