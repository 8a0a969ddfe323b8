"""One row of an nccl-tests table, found anywhere in a line of a log.

A row is recognised by its size, count and data type; what a launcher, kubectl or a logger wrote
before these does not matter. Versions differ: with or without `root`, with a float `error` or an
integer `#wrong`, with or without columns per iteration. Source: src/util.cu and src/common.cu of
NVIDIA/nccl-tests, 2.0 to 2.19.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Final

from stationmaster.diagnosis.nccl.operations import TYPE_BYTES

_TYPES: Final = "|".join(sorted(TYPE_BYTES, key=len, reverse=True))
_HEAD: Final = re.compile(rf"(?<![\w.+-])([0-9]{{1,18}}) ([0-9]{{1,18}}) ({_TYPES}) (.*)", re.ASCII)
_REDOP: Final = re.compile(r"(sum|prod|max|min|avg|mulsum|none)(?: (.*)|$)", re.ASCII)
_ROOT: Final = re.compile(r"(-1|[0-9]{1,6})(?![\w.])", re.ASCII)
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?"
    r"|[+-]?(?:nan|inf)|N/A",
    re.ASCII,
)
_LAUNCHER: Final = re.compile(r"\[[0-9]+,[0-9]+\]<\w+>:")
_GLUED: Final = re.compile(r" [0-9N][\w./-]*:[0-9]+:[0-9]+ \[\w+\] .*NCCL")

# The largest error of a result that nccl-tests before 2.13 took for rounding, by data type.
# Source: deltaMaxValue in its src/common.cu, with room for more ranks than two.
_LARGEST_ERROR: Final = {"half": 1e-2, "bfloat16": 1e-1, "float": 1e-4, "double": 1e-10}


@dataclass(frozen=True)
class Measured:
    """One half of a row, out of place or in place."""

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    num_wrong: int | None
    """The number of wrong values; None where results were not compared."""
    time_rounding: float
    """How far the printed time may be from the measured one, as a part of it."""
    busbw_rounding_gbps: float


@dataclass(frozen=True)
class Row:
    """What was measured for one size of message; at least one half is there."""

    size_bytes: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: Measured | None
    in_place: Measured | None

    @property
    def judged(self) -> Measured:
        """The half out of place, for which references are; in place where that is missing."""
        half = self.out_of_place or self.in_place
        assert half is not None
        return half

    @property
    def halves(self) -> tuple[Measured, ...]:
        """The halves that were printed, out of place first."""
        return tuple(half for half in (self.out_of_place, self.in_place) if half)


@dataclass(frozen=True)
class Columns:
    """What a table's header says; None where no header was seen."""

    has_root: bool | None = None
    per_iteration: bool = False


@dataclass(frozen=True)
class PartialRow:
    """A row as far as its line had it: other output may have come between its parts."""

    size_bytes: int
    count: int
    type: str
    redop: str | None
    root: int | None
    values: tuple[str, ...]
    columns: Columns

    @property
    def num_missing(self) -> int:
        """The number of values that a whole row has beyond these."""
        return 2 * self._half - len(self.values)

    @property
    def _half(self) -> int:
        return 8 if self.columns.per_iteration else 4

    def is_continued_by(self, values: tuple[str, ...]) -> bool:
        """Say whether these are all that is missing, or the half of it that comes first."""
        return len(values) > 0 and (
            len(values) == self.num_missing or (len(values) == self._half and not self.values)
        )

    def with_rest(self, values: tuple[str, ...]) -> PartialRow:
        """Add the values of its next part."""
        return replace(self, values=self.values + values)

    def row(self) -> Row | None:
        """Make the row with the halves that are whole and make sense; None without any."""
        first = _measured(self.values[:4], self.type)
        second = _measured(self.values[self._half : self._half + 4], self.type)
        if first is None and second is None:
            return None
        return Row(self.size_bytes, self.count, self.type, self.redop, self.root, first, second)


def find_row(line: str, columns: Columns) -> PartialRow | None:
    """Find the row in a line whose words are one space apart, or None."""
    head = _HEAD.search(line)
    if head is None:
        return None
    size, count, kind, rest = head.groups()
    operator = _REDOP.match(rest)
    redop = operator.group(1) if operator else None
    if operator:
        rest = operator.group(2) or ""
    values = leading_values(rest)
    root = None
    if columns.has_root or (columns.has_root is None and _starts_with_root(values)):
        found = _ROOT.match(rest)
        if found:
            root = int(found.group(1))
            values = values[1:]
    values = values[: 16 if columns.per_iteration else 8]
    if len(values) % 4 == 3 and _is_glued(rest):
        values += ("N/A",)
    if not operator and root is None and not values:
        return None
    return PartialRow(int(size), int(count), kind, redop, root, values, columns)


def leading_values(text: str) -> tuple[str, ...]:
    """Return the numbers and N/A with which a text begins."""
    values = []
    for word in text.split(" "):
        if not _NUMBER.fullmatch(word):
            break
        values.append(word)
    return tuple(values)


def rest_of_row(line: str) -> tuple[str, ...]:
    """Return the numbers and N/A with which a line ends, after a launcher's or logger's prefix."""
    values: list[str] = []
    for word in reversed(_LAUNCHER.sub(" ", line).split()):
        if len(values) == 16 or not _NUMBER.fullmatch(word):
            break
        values.append(word)
    return tuple(reversed(values))


def _is_glued(text: str) -> bool:
    """Say whether a line of NCCL begins right after the last number of a half.

    Where the number ends cannot be seen, as hosts may begin with a digit.
    """
    return bool(_GLUED.search(text))


def _starts_with_root(values: tuple[str, ...]) -> bool:
    """Say, without a header, whether -1 or one value more than whole halves have comes first."""
    if not values or not _ROOT.fullmatch(values[0]):
        return False
    return values[0] == "-1" or len(values) in (5, 9)


def _measured(values: tuple[str, ...], kind: str) -> Measured | None:
    if len(values) < 4 or "N/A" in values[:3]:
        return None
    time_us, algbw, busbw = (float(value) for value in values[:3])
    if not (math.isfinite(time_us) and math.isfinite(algbw) and math.isfinite(busbw)):
        return None
    if time_us <= 0 or algbw < 0 or busbw < 0:
        return None
    return Measured(
        time_us=time_us,
        algbw_gbps=algbw,
        busbw_gbps=busbw,
        num_wrong=_num_wrong(values[3], kind),
        time_rounding=_rounding(values[0]) / time_us,
        busbw_rounding_gbps=_rounding(values[2]),
    )


def _num_wrong(word: str, kind: str) -> int | None:
    """Read how many values are wrong, from a count or the old float error; 1 for a bad error."""
    if word == "N/A":
        return None
    number = abs(float(word))
    if not math.isfinite(number):
        return 1
    if number >= 1:
        return round(number)
    return int(number > _LARGEST_ERROR.get(kind, 0))


def _rounding(word: str) -> float:
    """Return half a unit of the last printed digit."""
    mantissa, _, exponent = word.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * float(10.0 ** (int(exponent or 0) - decimals))
