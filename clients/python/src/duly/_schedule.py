"""The schedules of a task: what the client can check is an error at the call. The program has the last word."""

import re
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Dict, List, Optional, Tuple, Union

from ._durations import duration_text, parse_duration, whole_milliseconds
from ._zones import ZONES
from .errors import InvalidTask

_TYPES = {"cron": "cron", "every": "interval", "delay": "delay"}
_EXPECTED = "cron, on, every, delay, at, in_, now and manual"
_NICKNAMES = re.compile(r"@(yearly|annually|monthly|weekly|daily|midnight|hourly)", re.ASCII | re.IGNORECASE)
# Of each field of an expression: its name, its least and its greatest number, and its words.
_FIELDS: List[Tuple[str, int, int, str]] = [
    ("second", 0, 59, ""),
    ("minute", 0, 59, ""),
    ("hour", 0, 23, ""),
    ("day of month", 1, 31, "L LW W"),
    ("month", 1, 12, "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"),
    ("day of week", 0, 7, "SUN MON TUE WED THU FRI SAT L"),
]
_ITEM = re.compile(r"[*0-9a-z]+(-[0-9a-z]+)?(/[0-9]+|#([0-9]|L))?", re.ASCII | re.IGNORECASE)
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2})(:[0-9]{2})?(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EARLIEST, _LATEST = 1_000_000_000_000, 64_060_588_800_000

Zone = Union[str, tzinfo, None]


def schedule(request: str, options: Dict[str, Any], zone: Zone) -> Tuple[str, str, bool]:
    """Returns type and value of the one schedule that is given, and whether the value is the time of the call.

    Raises `InvalidTask`.
    """
    if options.get("after") is not None:
        meaning = "`in_` runs once, this long from now; `delay` runs again, this long after each end"
        raise InvalidTask(f"cannot {request}: after is not an argument: {meaning}")
    named = [(option, value) for option, value in options.items() if value is not None]
    if len(named) != 1:
        found = " and ".join(option for option, _ in named) or "none"
        raise InvalidTask(f"cannot {request}: expected exactly one of {_EXPECTED}, found {found}")
    option, given = named[0]

    def refused(expected: str) -> InvalidTask:
        return InvalidTask(f"cannot {request}: {option}: expected {expected}, found {_shown(given)}")

    def once(time: int, is_moving: bool = False) -> Tuple[str, str, bool]:
        if not _EARLIEST <= time <= _LATEST:
            raise refused("a time between 2001 and 4000")
        return "once", _utc(_EPOCH + timedelta(milliseconds=time)), is_moving

    kind = option.replace("_seconds", "")
    is_seconds = kind != option
    if is_seconds and (isinstance(given, bool) or not isinstance(given, (int, float)) or given != given):
        raise refused("a number of seconds")
    if kind == "manual":
        return "manual", "", False
    if kind == "now":
        return once(_now(), True)
    if kind == "at":
        if is_seconds:
            return once(round(given * 1000))
        if isinstance(given, datetime):
            if given.utcoffset() is not None:
                return once(whole_milliseconds(given - _EPOCH))
            if zone is None:
                raise refused("a time zone, in the datetime or as time_zone")
            return "once", given.isoformat(sep=" ", timespec="seconds"), False
        return "once", _time(given, refused), False
    if kind == "cron":
        _check_cron(given, refused)
        return "cron", given, False
    if kind == "on":
        # The program knows the grammar.
        if not isinstance(given, str) or not given.strip().lower().startswith("every ") or len(given) > 256:
            raise refused('a text such as "every 2 weeks on mon at 09:00"')
        return "calendar", given, False
    length = _length(timedelta(seconds=given) if is_seconds else given, option, refused)
    text = given if isinstance(given, str) else duration_text(length)
    if kind.startswith("in"):
        return once(_now() + whole_milliseconds(length), True)
    return _TYPES[kind], text, False


def _now() -> int:
    return whole_milliseconds(datetime.now(timezone.utc) - _EPOCH)


def _length(given: Any, option: str, refused: Any) -> timedelta:
    try:
        if isinstance(given, timedelta):
            duration_text(given)
            return given
        if isinstance(given, str):
            return parse_duration(given)
    except ValueError:
        raise refused('a duration of 1 ms to 10 years, such as "30s" or "1h 30m"') from None
    seconds = f"{option.rstrip('_')}_seconds"
    raise refused(f'a timedelta, or a text with a unit such as "15m"; for a number of seconds, use {seconds}')


def _time(text: Any, refused: Any) -> str:
    parts = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if parts is None:
        seconds = "; for a number of seconds since 1970, use at_seconds" if isinstance(text, (int, float)) else ""
        form = 'a datetime, or a text such as "2027-03-14T12:00:00Z", or "2027-03-14 12:00" for a local time'
        raise refused(form + seconds)
    date, clock, second, fraction, offset = parts.groups()
    try:
        datetime.fromisoformat(f"{date}T{clock}{second or ':00'}")
        if offset not in (None, "Z"):
            datetime.fromisoformat(f"{date}T{clock}:00{offset}")
    except ValueError as error:
        raise refused(f"a time that exists ({error})") from None
    if offset is None:
        return parts[0]
    # With an offset duly wants seconds.
    return f"{date}T{clock}{second or ':00'}{fraction or ''}{offset}"


def _check_cron(text: Any, refused: Any) -> None:
    """Checks the number of the fields, and the numbers and words in them."""
    form = 'a cron expression of 5 or 6 fields, such as "0 7 * * mon-fri", or @daily'
    if not isinstance(text, str) or len(text) > 256:
        raise refused(form)
    if _NICKNAMES.fullmatch(text.strip()):
        return
    fields = text.split()
    if len(fields) not in (5, 6):
        raise refused(form)
    for (name, least, most, words), field in zip(_FIELDS[6 - len(fields) :], fields):
        for item in field.split(","):
            known = words.split()
            parts = re.findall(r"[0-9]+|[A-Za-z]+", re.split("[/#]", item)[0])
            is_right = all(
                least <= int(part) <= most if part.isdigit() else part.upper() in known for part in parts
            )
            if not _ITEM.fullmatch(item) or not is_right:
                raise refused(f"* or {least}-{most} as {name}")


def milliseconds(request: str, argument: str, duration: Union[int, str, timedelta, None]) -> Optional[int]:
    """Returns a duration in milliseconds. Raises `InvalidTask`."""
    if isinstance(duration, str):
        try:
            duration = parse_duration(duration)
        except ValueError as error:
            raise InvalidTask(f"cannot {request}: {argument}: {error}") from error
    return whole_milliseconds(duration) if isinstance(duration, timedelta) else duration


def instant(request: str, argument: str, time: Optional[datetime]) -> Optional[int]:
    """Returns a time in milliseconds since 1970. Raises `InvalidTask`."""
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise InvalidTask(f"cannot {request}: {argument}: expected a datetime, found {_shown(time)}")
    if time.utcoffset() is None:
        raise InvalidTask(f"cannot {request}: expected a time zone in {argument}={time!r}, found none")
    return whole_milliseconds(time - _EPOCH)


def zone_name(request: str, zone: Zone) -> Optional[str]:
    """Returns the name of a time zone that duly knows. Raises `InvalidTask`."""
    if zone is None:
        return None
    name = zone if isinstance(zone, str) else "UTC" if zone is timezone.utc else getattr(zone, "key", None)
    if isinstance(name, str) and name in ZONES:
        return name
    form = 'an IANA name such as "Europe/Rome", or a ZoneInfo, as time_zone'
    raise InvalidTask(f"cannot {request}: expected {form}, found {_shown(zone)}")


def _utc(time: datetime) -> str:
    return time.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}.."
