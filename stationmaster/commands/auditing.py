"""What people did in a channel, as its audit has it."""

from __future__ import annotations

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
    begin = services.now() - timedelta(seconds=wanted.since_s)
    newest = islice(services.audit.newest_first(channel_id), _MOST_READ)
    found = (
        entry
        for entry in takewhile(lambda each: not wanted.since_s or each.at >= begin, newest)
        if entry.about.startswith(wanted.about)
        and wanted.person in ("", entry.user_id, entry.user_name)
    )
    return [*islice(found, MOST_SHOWN)]
