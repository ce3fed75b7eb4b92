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

from .errors import (
    Cancelled,
    EffectInDoubt,
    EffectRefused,
    Error,
    GiveUp,
    InvalidTask,
    ProtocolError,
    RetryAfter,
    TaskExists,
    UnknownTask,
    UnusableDatabase,
)
from .run import Cancellation, Performed, Run
from .tasks import add, trigger
from .worker import Worker, run_worker

__all__ = [
    "Cancellation",
    "Cancelled",
    "EffectInDoubt",
    "EffectRefused",
    "Error",
    "GiveUp",
    "InvalidTask",
    "Performed",
    "ProtocolError",
    "RetryAfter",
    "Run",
    "TaskExists",
    "UnknownTask",
    "UnusableDatabase",
    "Worker",
    "add",
    "run_worker",
    "trigger",
]
__version__ = "0.1.0"
