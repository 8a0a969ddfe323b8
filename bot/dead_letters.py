"""Makes dead letters of what cannot be posted of a batch of the stream.

The notifier is the stream's only consumer, one batch at a time. A record that made it fail would be
delivered again for an hour, and every card would stand still meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bot.stream import StreamBatch
from stationmaster.domain.outside import first_problem
from stationmaster.services import Services
from stationmaster.setting_aside import set_aside

NOTIFIER: Final = "notifier"


def keep_unread(services: Services, batch: StreamBatch) -> int:
    """Make dead letters of records that cannot be read; returns how many."""
    for one in batch.unread:
        _keep(services, [one.record], what=one.what, reason=first_problem(one.error))
    return len(batch.unread)


def keep_records_of(services: Services, batch: StreamBatch, key: str, *, reason: str) -> int:
    """Make dead letters of a batch's records of one run or cluster; returns how many."""
    kind, _, name = key.partition("#")
    what = f"news of {kind.lower()} {name}"
    _keep(services, batch.records.get(key, ()), what=what, reason=reason)
    return 1


def _keep(services: Services, records: Sequence[Any], *, what: str, reason: str) -> None:
    payload = {"Records": [*records]}
    set_aside(services, function=NOTIFIER, what=what, reason=reason, payload=payload)
