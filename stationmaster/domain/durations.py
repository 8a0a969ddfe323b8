"""Durations as people type them: 90s, 10m, 2h, 1d. Pure; knows no key and no command."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from stationmaster.domain.errors import BadCommand

LONGEST_S: Final = 7 * 86_400
_EXPECTED: Final = "a duration from 1s to 7d, such as 90s, 10m, 2h or 1d"

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_TYPED: Final = re.compile(r"([0-9]{1,9})([smhd])")
# The same in more letters, as other tools take it.
_LOOSE: Final = re.compile(
    r"([0-9]{1,9})\s*(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)", re.IGNORECASE
)


def read_duration(text: str) -> int | None:
    """Seconds, or None where it is no duration from 1s to 7d."""
    match = _TYPED.fullmatch(text)
    if match is None:
        return None
    seconds = int(match[1]) * _UNITS_S[match[2]]
    return seconds if 1 <= seconds <= LONGEST_S else None


def duration_of(key: str, value: str) -> int:
    """Read the seconds of a duration that was typed after `key`.

    Raises:
        BadCommand: it is no duration, or too long.
    """
    seconds = read_duration(value)
    if seconds is None:
        raise BadCommand(f"{key}={value[:40]} is not accepted: expected {_EXPECTED}")
    return seconds


def respelled(text: str) -> str | None:
    """Return the duration as it has to be typed, e.g. 2h for 2Hours; None where it is none."""
    match = _LOOSE.fullmatch(text.strip())
    if match is None:
        return None
    spelled = f"{int(match[1])}{match[2][0].lower()}"
    return spelled if read_duration(spelled) is not None else None


def nearest_duration(text: str) -> str | None:
    """Return the same, or 7d for a longer one; None where it is none, or shorter than 1s."""
    match = _LOOSE.fullmatch(text.strip())
    if match is not None and int(match[1]) * _UNITS_S[match[2][0].lower()] > LONGEST_S:
        return typed_duration(LONGEST_S)
    return respelled(text)


def typed_duration(seconds: float) -> str:
    """Write a duration in the largest unit in which it is a whole number."""
    whole = max(1, int(seconds))
    unit = next(unit for unit in reversed(_UNITS_S) if whole % _UNITS_S[unit] == 0)
    return f"{whole // _UNITS_S[unit]}{unit}"


def moment(at: datetime) -> str:
    """Write a moment as people read it, to the minute."""
    return f"{at:%Y-%m-%d %H:%M} UTC"
