"""What a benchmark hands back: a number, its unit, and its target, if it has one.

Every benchmark module builds these; `bench.__main__` prints them. Nothing here measures.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


class NotHere(Exception):
    """This machine lacks what a benchmark needs; the message is one line that says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number; without a target it is for information."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """`pass`, also for a value equal to the target, `over`, or `info` without one."""
        if self.at_most is None and self.at_least is None:
            return "info"
        is_over = self.at_most is not None and self.value > self.at_most
        is_under = self.at_least is not None and self.value < self.at_least
        return "over" if is_over or is_under else "pass"

    @property
    def target(self) -> str:
        """The target as text, "" for none."""
        for sign, limit in (("<=", self.at_most), (">=", self.at_least)):
            if limit is not None:
                return f"{sign} {_number(limit)} {self.unit}".rstrip()
        return ""

    def as_line(self) -> str:
        """Return the name, measured, target, verdict and a note, in aligned columns."""
        measured = f"{_number(self.value)} {self.unit}".rstrip()
        line = f"{self.name:<42} {measured:>20}  {self.target:<22} {self.verdict:<4}"
        return f"{line}  {self.note}".rstrip()


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that `percent` of the values do not exceed; there are two or more."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _number(value: float) -> str:
    """Return three significant digits, or whole with separators from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
