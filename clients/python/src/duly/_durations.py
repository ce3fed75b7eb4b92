"""Durations as texts with units: "1h 30m"."""

import re
from datetime import timedelta
from fractions import Fraction

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# The names of units that duly reads.
_NAMES = {
    **{name: 1 for name in ("ms", "msec", "millis")},
    **{name: 1_000 for name in ("s", "sec", "secs", "second", "seconds")},
    **{name: 60_000 for name in ("m", "min", "mins", "minute", "minutes")},
    **{name: 3_600_000 for name in ("h", "hr", "hrs", "hour", "hours")},
    **{name: 86_400_000 for name in ("d", "day", "days")},
    **{name: 604_800_000 for name in ("w", "wk", "wks", "week", "weeks")},
    **{name: 2_630_016_000 for name in ("month", "months")},
    **{name: 31_557_600_000 for name in ("y", "yr", "yrs", "year", "years")},
}
_PART = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]+)", re.ASCII)
_LONGEST_MS = 315_576_000_000  # ten years
_MILLISECOND = timedelta(milliseconds=1)


def whole_milliseconds(duration: timedelta) -> int:
    """Returns a duration in milliseconds; parts of one are cut."""
    return duration // _MILLISECOND


def duration_text(duration: timedelta) -> str:
    """Returns the canonical text: "1h 30m". Raises `ValueError` outside of 1 ms to ten years."""
    rest = whole_milliseconds(duration)
    if not 1 <= rest <= _LONGEST_MS:
        raise ValueError(f"expected a duration of 1 ms to 10 years, found {duration}")
    parts = []
    for unit, length in reversed(list(_UNITS.items())):
        if rest >= length:
            parts.append(f"{rest // length}{unit}")
            rest %= length
    return " ".join(parts)


def parse_duration(text: str) -> timedelta:
    """Parses numbers with units, such as "1h 30m" or "1.5 hours". Raises `ValueError`."""
    at, total = 0, Fraction(0)
    while at < len(text.rstrip()):
        part = _PART.match(text, at)
        if part is None or part[2] not in _NAMES:
            break
        total += Fraction(part[1]) * _NAMES[part[2]]
        at = part.end()
    if at < len(text.rstrip()) or total.denominator != 1 or not 1 <= total <= _LONGEST_MS:
        raise ValueError(f"expected a duration of 1ms to 10 years such as 30s or 1h 30m, found {text[:80]!r}")
    return timedelta(milliseconds=int(total))
