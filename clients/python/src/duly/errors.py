"""The exceptions of this package."""

from datetime import timedelta
from typing import Optional, Union

from ._durations import duration_text, parse_duration


class Error(Exception):
    """The base class of all exceptions of this package."""


class ProtocolError(Error):
    """A line that is not a message of the protocol."""


class GiveUp(Error):
    """Raised by a handler: the run is dead, and is not retried. The text becomes its error."""


class Skip(Error):
    """Raised by a handler: there is nothing to do this time, and the run is skipped. It is no failure. The text is the reason."""


class RetryAfter(Error):
    """Raised by a handler: the attempt has failed, and the run is retried after `delay`, not the backoff of its task.

    `delay` is a `timedelta` or a text with units, such as "30s" or "1h 30m", from 1 ms to ten years. Otherwise:
    `ValueError`.
    """

    def __init__(self, delay: Union[str, timedelta], reason: Optional[str] = None) -> None:
        self.delay = parse_duration(delay) if isinstance(delay, str) else delay
        self.text = duration_text(self.delay)
        super().__init__(reason if reason is not None else f"to be retried after {self.text}")


class Cancelled(Error):
    """The attempt is to stop. Raised by `run.cancelled.raise_if_set()`.

    `reason` is "asked", "timeout" or "shutdown".
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"cancelled: {reason}")


class EffectRefused(Error):
    """The scheduler has refused to begin an effect or to record its end, or its value cannot be stored."""


class EffectInDoubt(GiveUp):
    """An earlier attempt began an effect and did not record its end, and there is no `look_up`: the run is dead."""


class UnusableDatabase(Error):
    """The file holds no tables of duly that this version can write."""


class InvalidTask(Error):
    """The task cannot be written or triggered as requested."""


class TaskExists(Error):
    """A task of this name exists with another definition."""


class UnknownTask(Error):
    """No task has this name."""


class UnknownRun(Error):
    """No run has this id."""


class ProgramError(Error):
    """There is no program duly, or it cannot be started."""
