"""What a benchmark hands back: a number, its unit, and its target, if it has one.

Every benchmark module builds these; `bench.__main__` prints them. Nothing here measures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class NotHere(Exception):
    """This machine lacks what a benchmark needs; the message is one line that says what."""


class Verdict(StrEnum):
    """Whether a figure meets its target."""

    PASS = "pass"
    OVER = "over"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class AtMost:
    """The figure must not be above this."""

    limit: float


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The figure must not be below this."""

    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number; without a target it is for information."""

    name: str
    value: float
    unit: str
    target: AtMost | AtLeast | None = None
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """A value equal to the target passes."""
        match self.target:
            case None:
                return Verdict.INFO
            case AtMost(limit):
                return Verdict.PASS if self.value <= limit else Verdict.OVER
            case AtLeast(limit):
                return Verdict.PASS if self.value >= limit else Verdict.OVER

    def as_line(self) -> str:
        """Return the name, measured, target, verdict and a note, in aligned columns."""
        measured = f"{number(self.value)} {self.unit}".rstrip()
        line = f"{self.name:<42} {measured:>20}  {self._target_text():<22} {self.verdict.value:<4}"
        return f"{line}  {self.note}".rstrip()

    def as_json(self) -> dict[str, object]:
        """Return one object of the `--json` file."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": self._target_text() or None,
            "verdict": self.verdict.value,
            "note": self.note,
        }

    def _target_text(self) -> str:
        if self.target is None:
            return ""
        sign = "<=" if isinstance(self.target, AtMost) else ">="
        return f"{sign} {number(self.target.limit)} {self.unit}".rstrip()


def number(value: float) -> str:
    """Return three significant digits, or whole with separators from a thousand on."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed.

    Raises:
        ValueError: there are no values, or the percentage is not in (0, 100].
    """
    if not values or not 0 < percent <= 100:
        raise ValueError(f"percentile {percent:g} of {len(values)} values: expected 0 < p <= 100")
    ordered = sorted(values)
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1]
