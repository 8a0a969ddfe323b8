"""A log of nccl-tests, read once, line by line: its tables, and what NCCL said of the transport."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from stationmaster.diagnosis.nccl.tables import Table, TableReader
from stationmaster.diagnosis.nccl.transport import Transport, TransportReader

TERMINAL_CODE: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
)
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A longer line is none of NCCL's; the rest of it is read as further lines.
_MAX_LINE: Final = 8192


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
