"""What a handler gets: the attempt that it carries out."""

import asyncio
import concurrent.futures
import inspect
import threading
from collections import deque
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Awaitable, Callable, Deque, Dict, Generic, Optional, Tuple, TypeVar, Union

from . import _messages
from ._output import Output
from .errors import Cancelled, EffectInDoubt, EffectRefused, GiveUp, ProtocolError

#: The attempt whose handler calls. It may have ended since.
calling: "ContextVar[Optional[Run]]" = ContextVar("duly_run", default=None)

T = TypeVar("T")
_LEVELS = ("error", "warn", "info", "debug", "trace")
_MAX_KEY_BYTES = 200
_Answer = Dict[str, Any]


class Performed(Generic[T]):
    """The answer of `look_up` for an effect that an earlier attempt has performed, with its value."""

    def __init__(self, value: T) -> None:
        self.value = value


class Cancellation:
    """Whether an attempt is to stop."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._reason: Optional[str] = None

    @property
    def reason(self) -> Optional[str]:
        """"asked" (a user or the overlap policy), "timeout", "shutdown", or `None`: not cancelled."""
        return self._reason

    def is_set(self) -> bool:
        """Returns whether the attempt is to stop."""
        return self._set.is_set()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until the attempt is to stop, at most `timeout` seconds. Returns whether it is to stop."""
        return self._set.wait(timeout)

    def raise_if_set(self) -> None:
        """Raises `Cancelled` if the attempt is to stop."""
        if self.is_set():
            raise Cancelled(self._reason or "asked")

    def _cancel(self, reason: str) -> None:
        if not self._set.is_set():
            self._reason = reason
            self._set.set()


class Run:
    """An attempt of a run."""

    def __init__(self, message: Dict[str, Any], output: Output, database: str) -> None:
        self.run_id: int = _messages.integer(message, "run")
        #: 1 for the first attempt of the run.
        self.attempt: int = _messages.integer(message, "attempt")
        self.task: str = _messages.string(message, "task")
        self.handler: str = _messages.string(message, "handler")
        #: Any JSON: that of the run, or else of the task.
        self.payload: Any = message.get("payload")
        #: The occurrence; for a requested run, the time of the request.
        self.scheduled_for: datetime = _time(message, "scheduled_for")
        #: "schedule", "catch_up", "manual", "on_dead", "on_success", "on_end"
        #: or "on_missed".
        self.origin: str = _messages.string(message, "origin")
        #: The same for all attempts of the run.
        self.idempotency_key: str = _messages.string(message, "idempotency_key")
        #: When the attempt times out; `None`: no limit.
        self.deadline: Optional[datetime] = None if message.get("deadline") is None else _time(message, "deadline")
        #: The absolute path of the database.
        self.database: str = database
        self.cancelled = Cancellation()
        self._output = output
        self._ended = False
        self._asked: Dict[str, Deque["concurrent.futures.Future[_Answer]"]] = {}
        self._loop_thread: Optional[int] = None

    def __repr__(self) -> str:
        return f"<Run {self.run_id} of {self.task!r}, attempt {self.attempt}>"

    def progress(self, text: str) -> None:
        """Reports how far the attempt has come. The newest text is stored, at most once a second."""
        self._send(_messages.line("progress", **self._keys(), text=_messages.text(str(text))))

    def log(self, level: str, text: str) -> None:
        """Writes a line to the log of duly. `level`: "error", "warn", "info", "debug" or "trace"."""
        if level not in _LEVELS:
            raise ValueError(f"expected one of the levels {', '.join(_LEVELS)}, found {level!r}")
        self._send(_messages.line("log", level=level, run=self.run_id, text=_messages.text(str(text))))

    def effect(
        self, key: str, f: Callable[[], T], look_up: Optional[Callable[[], Optional[Performed[T]]]] = None
    ) -> T:
        """Performs an effect once, however often the run is retried, and returns its value.

        The intent is stored; then `f` is called; then its value is stored, as JSON. A later attempt returns the stored
        value and calls nothing. An exception of `f` means that the effect was not performed. If the worker dies in `f`,
        the effect is in doubt: the next attempt calls `look_up`, which returns `Performed(value)`, or `None` if the
        effect was not performed. Without `look_up` it raises `EffectInDoubt`, and the run is dead.

        Raises `EffectRefused` if the scheduler refuses, or if the value cannot be stored.
        """
        if self._loop_thread == threading.get_ident():
            raise RuntimeError(f"effect {key!r} would block the event loop: use effect_async")
        state, stored = self._begun(key, self._ask("effect_begin", key).result())
        if state == "done":
            value: T = stored
            return value
        if state == "in_doubt":
            found: Optional[Performed[T]] = self._found(key, look_up() if look_up is not None else self._in_doubt(key))
            if found is not None:
                self._stored(key, self._ask("effect_done", key, self._value(key, found.value)).result())
                return found.value
        try:
            value = f()
        except Exception:
            self._undone(key, self._ask("effect_failed", key).result())
            raise
        self._stored(key, self._ask("effect_done", key, self._value(key, value)).result())
        return value

    async def effect_async(
        self,
        key: str,
        f: Callable[[], Union[T, Awaitable[T]]],
        look_up: Optional[Callable[[], Union[Optional[Performed[T]], Awaitable[Optional[Performed[T]]]]]] = None,
    ) -> T:
        """Performs an effect once, as `effect`. `f` and `look_up` may be coroutine functions.

        If the attempt is cancelled before `f` is called, the effect was not performed. If it is cancelled in `f`, the
        effect is in doubt.
        """
        answer, cancelled = await _uninterrupted(self._ask("effect_begin", key))
        state, stored = self._begun(key, answer)
        if cancelled is not None:
            if state == "begin":
                await _uninterrupted(self._ask("effect_failed", key))
            raise cancelled
        if state == "done":
            value: T = stored
            return value
        if state == "in_doubt":
            looked_up = await _value_of(look_up()) if look_up is not None else self._in_doubt(key)
            found: Optional[Performed[T]] = self._found(key, looked_up)
            if found is not None:
                await self._store_async(key, found.value)
                return found.value
        try:
            value = await _value_of(f())
        except Exception:
            answer, cancelled = await _uninterrupted(self._ask("effect_failed", key))
            self._undone(key, answer)
            if cancelled is not None:
                raise cancelled
            raise
        await self._store_async(key, value)
        return value

    async def _store_async(self, key: str, value: object) -> None:
        answer, cancelled = await _uninterrupted(self._ask("effect_done", key, self._value(key, value)))
        self._stored(key, answer)
        if cancelled is not None:
            raise cancelled

    def _begun(self, key: str, answer: _Answer) -> Tuple[str, Any]:
        state = answer.get("state")
        if state == "begin" or state == "in_doubt" or state == "done":
            return state, answer.get("value")
        raise EffectRefused(f"cannot begin effect {key!r}: {_reason(answer)}")

    def _stored(self, key: str, answer: _Answer) -> None:
        if answer.get("state") != "stored":
            raise EffectRefused(f"effect {key!r} was performed, and its value is not stored: {_reason(answer)}")

    def _undone(self, key: str, answer: _Answer) -> None:
        if answer.get("state") != "undone":
            self.log("warn", f"effect {key!r} has failed, and is in doubt all the same: {_reason(answer)}")

    def _in_doubt(self, key: str) -> Any:
        raise EffectInDoubt(
            f"effect {key!r} is in doubt: an earlier attempt began it and did not record how it ended; "
            "find out, settle it in task_effects, and retry the run"
        )

    def _found(self, key: str, found: Optional[Performed[T]]) -> Optional[Performed[T]]:
        if found is None or isinstance(found, Performed):
            return found
        raise GiveUp(
            f"effect {key!r} is in doubt: expected Performed(value) or None from look_up, found {type(found).__name__}"
        )

    def _value(self, key: str, value: object) -> bytes:
        try:
            return _messages.to_json(value)
        except _messages.NotJson as error:
            raise EffectRefused(f"effect {key!r} was performed, and its value is not JSON: {error}") from error

    def _keys(self) -> Dict[str, object]:
        return {"run": self.run_id, "attempt": self.attempt}

    def _send(self, line: bytes) -> None:
        """Sends a line, unless the attempt has ended: a line after the end would break the protocol."""
        with self._output.lock:
            if self._ended:
                return
            self._output.add(line)
        self._output.flush()

    def _ask(self, kind: str, key: str, value: Optional[bytes] = None) -> "concurrent.futures.Future[_Answer]":
        """Sends a message about an effect. The answer follows."""
        if not isinstance(key, str):
            raise TypeError(f"expected a text as the key of an effect, found {type(key).__name__}")
        if not 1 <= len(key.encode("utf-8", "replace")) <= _MAX_KEY_BYTES:
            raise EffectRefused(f"cannot begin effect {key[:80]!r}: expected a key of 1 to {_MAX_KEY_BYTES} bytes")
        keys = {**self._keys(), "key": _messages.text(key)}
        line = _messages.line(kind, **keys) if value is None else _messages.with_json(kind, keys, "value", value)
        if len(line) > _messages.MAX_LINE:
            raise EffectRefused(f"effect {key!r} was performed, and its value is not stored: it is longer than 1 MiB")
        answer: "concurrent.futures.Future[_Answer]" = concurrent.futures.Future()
        with self._output.lock:
            if self._ended:
                answer.set_result(_OVER)
                return answer
            self._asked.setdefault(_messages.text(key), deque()).append(answer)
            self._output.add(line)
        self._output.flush()
        return answer

    def _answer(self, message: _Answer) -> None:
        """Hands over an answer about an effect. Answers have the order of the questions."""
        with self._output.lock:
            waiting = self._asked.get(_messages.string(message, "key"))
            answer = waiting.popleft() if waiting else None
        if answer is not None:
            answer.set_result(message)

    def _end(self) -> None:
        """Marks the attempt as ended. The caller holds the lock of the output."""
        self._ended = True
        for waiting in self._asked.values():
            for answer in waiting:
                answer.set_result(_OVER)
        self._asked.clear()


_OVER: _Answer = {"state": "refused", "error": "its attempt has ended"}


def _reason(answer: _Answer) -> str:
    return str(answer.get("error") or f"found the state {answer.get('state')!r}")


def _time(message: Dict[str, Any], key: str) -> datetime:
    text = _messages.string(message, key)
    try:
        time = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError as error:
        raise ProtocolError(f"expected a time {key} in RFC 3339, found {text[:80]!r}") from error
    if time.tzinfo is None:
        raise ProtocolError(f"expected a time {key} with an offset, found {text[:80]!r}")
    return time


async def _value_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _uninterrupted(
    answer: "concurrent.futures.Future[_Answer]",
) -> Tuple[_Answer, Optional[asyncio.CancelledError]]:
    """Waits for an answer, also if the task is cancelled meanwhile: else the state of the effect would be unknown."""
    cancelled = None
    waiting = asyncio.wrap_future(answer)
    while True:
        try:
            return await asyncio.shield(waiting), cancelled
        except asyncio.CancelledError as error:
            cancelled = error
