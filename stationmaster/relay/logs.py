"""From the bytes of a log stream to lines, each once, however often the stream is cut and resumed.

Pure. A log is read with stamps, so each line comes as `2026-01-02T03:04:05.678901234Z text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from stationmaster.domain.run.events import RelayEvent
from stationmaster.relay.lines import LogLine
from stationmaster.relay.parsing import LineInterpreter

MAX_LINE_BYTES: Final = 16_384  # what one write of a container may bring; more is cut off
# Lines of two streams (stdout, stderr) may be stamped a little out of order.
_DISORDER: Final = timedelta(seconds=5)
_PRUNE_AT: Final = 8192
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)$")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NEVER: Final = "1970-01-01T00:00:00.000000000Z"


def normalise_stamp(text: str) -> str | None:
    """Write the stamp in UTC with nine decimals, so that strings sort as times; None for others."""
    match = _STAMP.match(text)
    if match is None:
        return None
    seconds, fraction, zone = match.groups()
    if zone != "Z":
        try:
            moment = datetime.fromisoformat(seconds + zone).astimezone(UTC)
        except (ValueError, OverflowError):
            return None
        seconds = f"{moment:%Y-%m-%dT%H:%M:%S}"
    # A line that continues another may begin with a time of the program.
    return f"{seconds}.{fraction or '':0<9}Z" if "1970" <= seconds < "2200" else None


class LineAssembler:
    """Cuts one stream into (stamp, text) at newlines and, as progress bars use them, at returns."""

    def __init__(self) -> None:
        self._rest = b""
        self._stamp: str | None = None  # of the line that `_rest` continues
        self._last_stamp = _NEVER

    def feed(self, data: bytes) -> Iterator[tuple[str, str]]:
        """Take in a chunk and yield what it completes."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            yield from self._pieces(line)
            self._stamp = None
        if b"\r" in self._rest:
            complete, _, self._rest = self._rest.rpartition(b"\r")
            yield from self._pieces(complete)
        self._rest = self._rest[:MAX_LINE_BYTES]

    def finish(self) -> Iterator[tuple[str, str]]:
        """Yield a last line without an end; only right when the container has ended."""
        rest, self._rest = self._rest, b""
        if rest:
            yield from self._pieces(rest)

    def _pieces(self, line: bytes) -> Iterator[tuple[str, str]]:
        if self._stamp is None:
            head, _, body = line.partition(b" ")
            stamp = normalise_stamp(head.decode("ascii", "replace"))
            if stamp is None:
                stamp, body = self._last_stamp, line  # not stamped: goes with the line before
            self._stamp = self._last_stamp = stamp
        else:
            body = line
        for piece in body.split(b"\r") if b"\r" in body else (body,):
            text = piece[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip()
            if "\x1b" in text:
                text = _COLOUR.sub("", text)
            if text:
                yield self._stamp, text


class LogCursor:
    """Remembers which lines were read, so that a resumed stream yields only the others.

    Memory is bounded: what is older than a few seconds before the newest line counts as read.
    """

    def __init__(self) -> None:
        self._reported: dict[str, int] = {}
        self._in_stream: dict[str, int] = {}
        self._newest = ""
        self._horizon = ""
        self._prune_at = _PRUNE_AT

    @property
    def since(self) -> str | None:
        """Where the next stream should begin, in whole seconds; None for the very beginning."""
        return self._before_newest() if self._newest else None

    @property
    def newest(self) -> str:
        """The stamp of the newest line; empty before the first."""
        return self._newest

    def begin_stream(self) -> None:
        """Read again what comes next, from `since` or from the beginning."""
        self._in_stream = {}
        # Without the "Z": a stamp with decimals must not sort before its own second.
        self._horizon = self._before_newest()[:19] if self._newest else ""

    def accept(self, stamp: str) -> int | None:
        """Return the line's ordinal among lines of its stamp, or None when it was read before."""
        if stamp < self._horizon:
            return None
        ordinal = self._in_stream.get(stamp, 0)
        self._in_stream[stamp] = ordinal + 1
        if ordinal < self._reported.get(stamp, 0):
            return None
        self._reported[stamp] = ordinal + 1
        self._newest = max(self._newest, stamp)
        if len(self._reported) > self._prune_at:
            self._prune()
        return ordinal

    def _before_newest(self) -> str:
        newest = datetime.fromisoformat(self._newest[:19] + "+00:00")
        if newest.year < 1971:
            return self._newest[:19] + "Z"
        return f"{newest - _DISORDER:%Y-%m-%dT%H:%M:%S}Z"

    def _prune(self) -> None:
        oldest = self._before_newest()[:19]
        self._reported = {stamp: n for stamp, n in self._reported.items() if stamp >= oldest}
        self._in_stream = {stamp: n for stamp, n in self._in_stream.items() if stamp >= oldest}
        self._prune_at = max(_PRUNE_AT, 2 * len(self._reported))


class LogPipeline:
    """Bytes of a pod's log in, events out; `keep_line` gets every line for the tail."""

    def __init__(
        self, interpreter: LineInterpreter, *, keep_line: Callable[[LogLine], None]
    ) -> None:
        self._interpreter = interpreter
        self._keep_line = keep_line
        self._cursor = LogCursor()
        self._assembler = LineAssembler()

    @property
    def since(self) -> str | None:
        """The time to resume reading from, as `sinceTime`."""
        return self._cursor.since

    @property
    def newest(self) -> str:
        return self._cursor.newest

    def begin_stream(self, *, container_run: int) -> None:
        """Take what comes next as a new stream of the container after its nth restart."""
        self._assembler = LineAssembler()
        self._cursor.begin_stream()
        self._interpreter.start_container_run(container_run)

    def feed(self, data: bytes) -> list[RelayEvent]:
        """Return the events that the chunk completes."""
        return self._events(self._assembler.feed(data))

    def finish(self) -> list[RelayEvent]:
        """Return the events of a last line without an end."""
        return self._events(self._assembler.finish())

    def container_ended(self, exit_code: int | None) -> list[RelayEvent]:
        """Return the events of the end of a run of the container, after `finish`."""
        return self._interpreter.container_ended(exit_code)

    def _events(self, pieces: Iterator[tuple[str, str]]) -> list[RelayEvent]:
        events: list[RelayEvent] = []
        for stamp, text in pieces:
            ordinal = self._cursor.accept(stamp)
            if ordinal is None:
                continue
            line = LogLine(stamp, ordinal, text)
            self._keep_line(line)
            events += self._interpreter.read(line)
        return events
