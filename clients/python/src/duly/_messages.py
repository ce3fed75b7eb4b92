"""Messages of the protocol: one JSON object a line."""

import json
import os
import sys
from types import TracebackType
from typing import Any, Dict, Optional

from .errors import ProtocolError

MAX_LINE = 1_048_576
# A character takes at most six bytes in JSON: "\u0000".
MAX_TEXT = 64 * 1024
_HERE = os.path.dirname(os.path.abspath(__file__))
# SQLite accepts JSON of up to 2000 levels, more than Python reads under its usual limit.
_DEEP = 20_000
# Most exceptions of a group that are described.
_MAX_INNER = 8

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class NotJson(ValueError):
    """A value that JSON cannot express."""


def to_json(value: object) -> bytes:
    """Returns a value as JSON in UTF-8. Raises `NotJson`."""
    try:
        return _encode(value).encode("utf-8")
    except Exception as error:  # also what a class of the value raises
        raise NotJson(str(error) or type(error).__name__) from error


def text(value: str) -> str:
    """Returns a text that fits into a message: well-formed and of limited length."""
    if len(value) > MAX_TEXT:
        value = value[:MAX_TEXT] + f".. ({len(value) - MAX_TEXT} more characters)"
    return value.encode("utf-8", "replace").decode("utf-8")


def line(kind: str, **keys: object) -> bytes:
    """Returns a message with its line end."""
    return to_json({"type": kind, **keys}) + b"\n"


def begin(run: int, attempt: int) -> bytes:
    """Returns the message that a handler is about to be called."""
    return b'{"type":"begin","run":%d,"attempt":%d}\n' % (run, attempt)


def with_json(kind: str, keys: Dict[str, object], name: str, value: bytes) -> bytes:
    """Returns a message with one more key whose value is JSON already."""
    return to_json({"type": kind, **keys})[:-1] + b',"' + name.encode() + b'":' + value + b"}\n"


def parse(raw: bytes) -> Dict[str, Any]:
    """Reads a line. Raises `ProtocolError` if it is no object with a `type`."""
    try:
        message = _loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"expected a JSON object, found {_excerpt(raw)}: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError(f"expected a JSON object with a type, found {_excerpt(raw)}")
    return message


def _loads(source: str) -> Any:
    try:
        return json.loads(source, parse_constant=_no_constant)
    except RecursionError:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(max(usual, _DEEP))
        try:
            return json.loads(source, parse_constant=_no_constant)
        finally:
            sys.setrecursionlimit(usual)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # An integer of more digits than Python converts.
        return json.loads(source, parse_constant=_no_constant, parse_int=_number)


def _number(digits: str) -> Any:
    return int(digits) if len(digits) <= 1000 else float(digits)


def _no_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)


def _excerpt(raw: bytes) -> str:
    shown = raw[:80].decode("utf-8", "replace")
    return repr(shown) + (".." if len(raw) > 80 else "")


def integer(message: Dict[str, Any], key: str) -> int:
    """Returns an integer of a message. Raises `ProtocolError`."""
    value = message.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ProtocolError(f"expected an integer {key} in {message['type']!r}, found {str(value)[:80]!r}")


def string(message: Dict[str, Any], key: str) -> str:
    """Returns a text of a message. Raises `ProtocolError`."""
    value = message.get(key)
    if isinstance(value, str):
        return value
    raise ProtocolError(f"expected a text {key} in {message['type']!r}, found {str(value)[:80]!r}")


def describe(error: BaseException) -> str:
    """Returns the type, message and place of an exception in one text."""
    place = _place(error.__traceback__)
    return _name_and_text(error) + (f" ({place})" if place else "") + caused_by(error)


def caused_by(error: BaseException) -> str:
    """Returns the cause that `raise .. from` has given to an exception."""
    cause = error.__cause__
    return f", caused by {_name_and_text(cause)}" if cause is not None else ""


def message_of(error: BaseException) -> str:
    """Returns the text of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "(its text cannot be read)"


def _name_and_text(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    said = message_of(error)
    return (f"{name}: {said}" if said else name) + _inner(error)


def described(error: BaseException) -> str:
    """Returns the type and message of an exception, with those of its group and its cause."""
    return _name_and_text(error) + caused_by(error)


def _inner(error: BaseException) -> str:
    """Returns the exceptions of a group."""
    inner = getattr(error, "exceptions", None)
    if not isinstance(inner, tuple) or not all(isinstance(one, BaseException) for one in inner):
        return ""
    shown = [_name_and_text(one) for one in inner[:_MAX_INNER]]
    more = f"; and {len(inner) - len(shown)} more" if len(inner) > len(shown) else ""
    return f" ({'; '.join(shown)}{more})"


def _place(traceback: Optional[TracebackType]) -> str:
    """Returns where the exception was raised, outside of this package."""
    place = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if os.path.dirname(os.path.abspath(code.co_filename)) != _HERE:
            place = f"{code.co_filename}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return place
