"""What people did in a channel, as its audit has it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice, takewhile
from typing import Final

from stationmaster.domain.audit import Entry
from stationmaster.domain.commands.requests import ShowAudit
from stationmaster.services import Services

MOST_SHOWN: Final = 20
# Of a channel; what is older is in the export.
_MOST_READ: Final = 2_000


def show_audit(services: Services, wanted: ShowAudit, *, channel_id: str) -> list[Entry]:
    """Return the newest entries that are asked for, newest first."""
    return [*islice(_found(services, wanted, channel_id), MOST_SHOWN)]


def _found(services: Services, wanted: ShowAudit, channel_id: str) -> Iterator[Entry]:
    entries: Iterator[Entry] = islice(services.audit.newest_first(channel_id), _MOST_READ)
    if wanted.since_s:
        begin = services.now() - timedelta(seconds=wanted.since_s)
        entries = takewhile(lambda entry: entry.at >= begin, entries)
    for entry in entries:
        is_about = not wanted.about or entry.about.startswith(wanted.about)
        is_by = not wanted.person or wanted.person in (entry.user_id, entry.user_name)
        if is_about and is_by:
            yield entry
