"""What people did in a channel, as its audit has it."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice, takewhile
from typing import Final

from stationmaster.commands.looking import find_run
from stationmaster.domain.audit import Entry
from stationmaster.domain.commands.requests import ShowAudit
from stationmaster.domain.identities import ARN
from stationmaster.domain.keys.resume_from import NEWEST
from stationmaster.domain.teams import in_team, split
from stationmaster.services import Services

MOST_SHOWN: Final = 20
# Of a channel; what is older is in the export.
_MOST_READ: Final = 2_000
_MOST_ASKED: Final = 500  # for the name of a person


def show_audit(services: Services, wanted: ShowAudit, *, channel_id: str) -> list[Entry]:
    """Return the newest entries that are asked for, newest first."""
    about = wanted.about
    if about == NEWEST:
        about = find_run(services, about, channel_id=channel_id).run_id
    user_id = known_id(services, wanted.person, channel_id)
    begin = services.now() - timedelta(seconds=wanted.since_s)
    newest = islice(services.audit.newest_first(channel_id), _MOST_READ)
    found = (
        entry
        for entry in takewhile(lambda each: not wanted.since_s or each.at >= begin, newest)
        if entry.about.startswith(about) and (not wanted.person or entry.user_id == user_id)
    )
    return [*islice(found, MOST_SHOWN)]


def known_id(services: Services, person: str, channel_id: str) -> str:
    """Return the id of a person, whose name the channel's audit knows, also an earlier one."""
    if person.startswith(ARN):
        return person
    if person[:1] in ("U", "W") and person.isupper():
        return in_team(split(channel_id)[0], person)
    entries = islice(services.audit.newest_first(channel_id), _MOST_ASKED)
    return next((entry.user_id for entry in entries if entry.user_name == person), "")
