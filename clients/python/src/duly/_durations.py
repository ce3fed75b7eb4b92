"""Durations as texts with units: "1h 30m"."""

import re
from datetime import timedelta

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"\s*([0-9]{1,18})\s*(ms|s|m|h|d)(?![A-Za-z])", re.ASCII)
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
    """Parses whole numbers with the units d, h, m, s and ms. Raises `ValueError`."""
    at = total = 0
    while at < len(text.rstrip()):
        part = _PART.match(text, at)
        if part is None:
            break
        total += int(part[1]) * _UNITS[part[2]]
        at = part.end()
    if at < len(text.rstrip()) or not 1 <= total <= _LONGEST_MS:
        raise ValueError(f"expected a duration of 1ms to 10 years such as 30s or 1h 30m, found {text[:80]!r}")
    return timedelta(milliseconds=total)
