"""A log of nccl-tests, read once, line by line: its tables, and what NCCL said of the transport.

A log may have several tests, one after the other, and anything between and within their lines: one
`Table` for each that ran. `TableReader.feed` takes lines as `clean_lines` makes them; nothing here
raises, whatever the lines are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from stationmaster.diagnosis.nccl.operations import OPERATIONS, TYPE_BYTES
from stationmaster.diagnosis.nccl.rows import (
    Columns,
    PartialRow,
    Row,
    find_row,
    rest_of_row,
)
from stationmaster.diagnosis.nccl.transport import Transport, TransportReader

_PROGRAM: Final = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(OPERATIONS)})_perf(?![A-Za-z0-9_])")
_SETTINGS: Final = re.compile(r"nThread [0-9]+ nGpus [0-9]+ minBytes [0-9]+ maxBytes ([0-9]{1,18})")
_HEADER: Final = re.compile(r"size count type( redop)?( root)? (?:cpu)?time algbw busbw")
_RANK: Final = re.compile(
    r"(?<!\w)Rank ([0-9]{1,6}) (?:Group [0-9]+ )?Pid [0-9]+ on (\S{1,255}) device [0-9]+"
    r"(?: \[[^\]]*\] (.{1,100}))?"
)
_OUT_OF_BOUNDS: Final = re.compile(r"Out of bounds values ?: ?([0-9]{1,18})")
_AVERAGE: Final = re.compile(r"Avg bus bandwidth ?: ?([0-9.eE+-]{1,30})")
# Parts of the lines above; a log that was copied may have lost the "#" before them.
_HINTS: Final = ("nThread", "algbw", "Rank ", "Out of bounds", "Avg bus")
_CONCLUDED: Final = "Collective test concluded"
_MAX_ROWS: Final = 10_000
TERMINAL_CODE: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
)
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A longer line is none of NCCL's; the rest of it is read as further lines.
_MAX_LINE: Final = 8192


@dataclass
class Table:
    """What one test printed."""

    operation: str | None = None
    """The operation as the log names it; None where it does not."""
    rows: list[Row] = field(default_factory=list)
    max_bytes: int | None = None
    """The largest size that was asked for, from the header."""
    ranks: list[tuple[int, str]] = field(default_factory=list)
    """Rank and host, one entry for each line that names a rank."""
    gpus: set[str] = field(default_factory=set)
    out_of_bounds: int | None = None
    """Wrong values by the last lines; None where they are missing."""
    average_busbw_gbps: float | None = None
    is_complete: bool = False
    """Whether the test's last lines are there."""

    @property
    def num_ranks(self) -> int | None:
        """The number of ranks in its head; None where that is missing or incomplete."""
        named = {rank for rank, _ in self.ranks}
        return len(named) if named and named == set(range(len(named))) else None

    @property
    def hosts(self) -> set[str]:
        """The hosts of its ranks; empty where the head is missing or incomplete."""
        return {host for _, host in self.ranks} if self.num_ranks else set()

    @property
    def num_wrong(self) -> int:
        """The number of wrong values, the larger of what rows and last lines count."""
        counted = [half.num_wrong or 0 for row in self.rows for half in row.halves]
        return max(sum(counted), self.out_of_bounds or 0)

    @property
    def was_checked(self) -> bool:
        """Whether results were compared at all."""
        return any(half.num_wrong is not None for row in self.rows for half in row.halves)

    @property
    def ran_alone(self) -> bool:
        """Whether each process tested itself alone: each calls itself rank 0."""
        return len(self.ranks) > 1 and {rank for rank, _ in self.ranks} == {0}

    @property
    def is_of_several(self) -> bool:
        """Whether several tests printed into it at once: ranks and sizes come more than once."""
        ranks, sizes = [rank for rank, _ in self.ranks], [row.size_bytes for row in self.rows]
        return len(set(ranks)) < len(ranks) and len(set(sizes)) < len(sizes)


class TableReader:
    """Collects the tables of a log."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self._columns = Columns()
        self._partial: PartialRow | None = None
        self._operation: str | None = None
        self._is_open = False

    def feed(self, line: str) -> None:
        """Take the next line, its words one space apart."""
        if self._take_row(line):
            return
        program = _PROGRAM.search(line)
        if program and _CONCLUDED not in line:
            if self._is_open and self.tables[-1].rows:
                self._close()
            self._operation = program.group(1)
            if self._is_open and self.tables[-1].operation is None:
                self.tables[-1].operation = self._operation
        if any(hint in line for hint in _HINTS):
            self._take_comment(line)

    def close(self) -> list[Table]:
        """Return all tables after the last line, also those without a row."""
        self._flush()
        for table in self.tables:
            table.operation = table.operation or _inferred(table)
        return self.tables

    def _take_row(self, line: str) -> bool:
        found = find_row(line, self._columns)
        if found:
            self._flush()
            self._partial = found
        elif self._partial:
            # The rest of a row after other output, or of a row whose line was broken.
            rest = rest_of_row(line) if "NCCL" not in line and "#" not in line else ()
            if not self._partial.is_continued_by(rest):
                return False
            self._partial = self._partial.with_rest(rest)
        else:
            return False
        if self._partial.num_missing <= 0:
            self._flush()
        return True

    def _flush(self) -> None:
        partial, self._partial = self._partial, None
        if partial is None:
            return
        row, rows = partial.row(), self._table().rows
        if row is not None and len(rows) < _MAX_ROWS and row not in rows[-3:]:
            rows.append(row)

    def _take_comment(self, line: str) -> None:
        if settings := _SETTINGS.search(line):
            self._begin()
            self._table().max_bytes = int(settings.group(1))
        elif header := _HEADER.search(line):
            self._begin()
            self._columns = Columns(bool(header.group(2)), per_iteration=" i_min" in line)
            self._table()
        elif rank := _RANK.search(line):
            self._begin()
            table = self._table()
            table.ranks.append((int(rank.group(1)), rank.group(2)))
            table.gpus |= {rank.group(3)} if rank.group(3) else set()
        elif self._is_open and (out_of_bounds := _OUT_OF_BOUNDS.search(line)):
            self._flush()
            self._table().out_of_bounds = int(out_of_bounds.group(1))
        elif self._is_open and (average := _AVERAGE.search(line)):
            self._flush()
            table = self._table()
            table.is_complete = True
            table.average_busbw_gbps = _number(average.group(1))
            self._close()

    def _begin(self) -> None:
        """Begin a test's head: a test that has rows already is over."""
        self._flush()
        if self._is_open and self.tables[-1].rows:
            self._close()

    def _close(self) -> None:
        self._flush()
        self._is_open = False
        self._operation = None
        self._columns = Columns()

    def _table(self) -> Table:
        if not self._is_open:
            self.tables.append(Table(operation=self._operation))
            self._is_open = True
        return self.tables[-1]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _inferred(table: Table) -> str | None:
    """Infer the operation that only its own rows can have, where no line names it."""
    rows = table.rows
    if not rows:
        return None
    if table.num_ranks and all(_is_exchange(row, table.num_ranks) for row in rows):
        return "alltoall"
    is_whole = all(row.size_bytes == row.count * TYPE_BYTES[row.type] for row in rows)
    is_rooted = all(row.root is not None and row.root >= 0 for row in rows)
    operators = {row.redop for row in rows}
    if is_whole and is_rooted and operators <= {None, "none"}:
        return "broadcast"
    last = max(rows, key=lambda row: row.size_bytes).judged
    is_sum = not operators & {None, "none"} and all(row.root in (None, -1) for row in rows)
    # A sendrecv of old versions prints "sum" as well; its bandwidths are equal.
    is_multiplied = last.busbw_gbps > 1.2 * last.algbw_gbps or last.busbw_gbps == 0
    return "all_reduce" if is_whole and is_sum and is_multiplied else None


def _is_exchange(row: Row, num_ranks: int) -> bool:
    """Say whether a row is of an all-to-all: each rank sends its part of the size to each other
    one, without a root or an operator, and never in place, where nothing is compared.
    """
    is_part = row.size_bytes == row.count * TYPE_BYTES[row.type] * num_ranks
    is_plain = row.redop in (None, "none") and row.root in (None, -1)
    compared = [half.num_wrong is not None for half in row.halves]
    return is_part and is_plain and compared == [True, False]


@dataclass(frozen=True)
class NcclLog:
    """What a log says; `tables` is empty where no test has printed anything."""

    tables: tuple[Table, ...]
    transport: Transport

    @property
    def is_empty(self) -> bool:
        """Whether NCCL and nccl-tests have written nothing to it."""
        return not self.tables and not self.transport.has_nccl_lines


def read_log(lines: Iterable[str], *, operation: str | None = None) -> NcclLog:
    """Read lines, with or without line ends; nothing raises, whatever they are.

    Args:
        operation: of tests whose operation neither a line nor their rows tell, e.g. "broadcast".
    """
    tables, transport = TableReader(), TransportReader()
    for line in clean_lines(lines):
        tables.feed(line)
        transport.feed(line)
    found = tables.close()
    for table in found:
        table.operation = table.operation or operation
    return NcclLog(tuple(found), transport.result())


def clean_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without terminal codes, words one space apart; empty ones are left out.

    A carriage return ends a line, as progress bars and Windows use it.
    """
    for chunk in lines:
        for line in re.split(r"[\r\n]", chunk):
            for start in range(0, len(line), _MAX_LINE):
                text = TERMINAL_CODE.sub("", line[start : start + _MAX_LINE])
                words = _UNPRINTABLE.sub(" ", text).split()
                if words:
                    yield " ".join(words)
