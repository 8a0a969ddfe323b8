"""Container logs on disk, and readers that follow them.

A supervisor writes one line a record, stamped: `2026-01-02T03:04:05.678901Z text`. The kubelet
notifies a `ContainerLog` of writes and the end; a follower sleeps until it is notified.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True)
class LogQuery:
    """The parameters of a log request."""

    follow: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


class ContainerLog:
    """The log of one run of one container."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._listeners: set[Callable[[], None]] = set()
        self.ended = False

    def notify(self) -> None:
        """Wake the followers: there is more to read."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def end(self) -> None:
        """End the writing."""
        self.ended = True
        self.notify()

    def listen(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.add(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.discard(listener)


def _render(records: Iterable[bytes], query: LogQuery) -> Iterator[bytes]:
    since = query.since.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode() if query.since else b""
    for record in records:
        stamp, _, text = record.partition(b" ")
        # Stamps have one width, so bytes compare as times do.
        if stamp >= since:
            yield record if query.timestamps else text


def _read_from(path: Path, offset: int) -> tuple[list[bytes], int]:
    """Complete records from `offset` on, and the offset behind them."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    complete = data.rfind(b"\n") + 1
    # Not splitlines, which also ends a line where a progress bar returns to its beginning.
    return [line + b"\n" for line in data[:complete].split(b"\n")[:-1]], offset + complete


def read(log: ContainerLog, query: LogQuery) -> tuple[bytes, int]:
    """Return what is there now, and the offset behind it."""
    records, offset = _read_from(log.path, 0)
    lines = list(_render(records, query))
    if query.tail_lines is not None:
        lines = lines[len(lines) - query.tail_lines :] if query.tail_lines else []
    return b"".join(lines), offset


async def stream(
    log: ContainerLog, query: LogQuery, closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield the log, and with `follow` what is appended until the container ends or `closing`."""
    left = query.limit_bytes
    async for chunk in _chunks(log, query, closing):
        shown = chunk[:left]
        if left is not None:
            left -= len(shown)
        if shown:
            yield shown
        if left == 0:
            return


async def _chunks(
    log: ContainerLog, query: LogQuery, closing: asyncio.Event
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    more = asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(more.set)

    log.listen(wake)
    closer = asyncio.create_task(_set_after(closing, more))
    try:
        ended = log.ended
        first, offset = read(log, query)
        yield first
        while query.follow and not ended and not closing.is_set():
            await more.wait()
            more.clear()
            # Read after looking at `ended`, so that the last lines are not missed.
            ended = log.ended
            records, offset = _read_from(log.path, offset)
            yield b"".join(_render(records, query))
    finally:
        log.forget(wake)
        closer.cancel()


async def _set_after(closing: asyncio.Event, event: asyncio.Event) -> None:
    await closing.wait()
    event.set()
