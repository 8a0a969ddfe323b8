"""What of a batch of the stream cannot be posted: set aside, and named in the operations channel.

The notifier is the stream's only consumer, one batch at a time. A record that made it fail would be
delivered again for an hour, and every card would stand still meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bot.blocks import mrkdwn as md
from bot.blocks.elements import Content, section
from bot.outbox import Mark, Outbox
from bot.stream import StreamBatch
from bot.subjects import ClusterSubject, Subject
from stationmaster.aws.delivery_store import Owner
from stationmaster.aws.set_aside_store import SetAside
from stationmaster.domain.aggregates import CLUSTER, RUN
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.services import Services
from stationmaster.setting_aside import first_problem, set_aside

NOTIFIER: Final = "notifier"
_OPERATIONS: Final = Owner("operations")
_NAMED: Final = 5


def keep_unread(services: Services, batch: StreamBatch) -> int:
    """Set aside the records that cannot be read; returns how many."""
    for one in batch.unread:
        _keep(services, [one.record], what=one.what, reason=first_problem(one.error))
    return len(batch.unread)


def keep_records_of(services: Services, batch: StreamBatch, key: str, *, reason: str) -> int:
    """Set aside what the batch has of one run or cluster; returns how many that are."""
    kind, _, name = key.partition("#")
    what = f"news of {kind.lower()} {name}"
    _keep(services, batch.records.get(key, ()), what=what, reason=reason)
    return 1


def key_of(subject: Subject) -> str:
    """By what the records of a subject are found in a batch."""
    if isinstance(subject, ClusterSubject):
        return f"{CLUSTER.key_prefix}#{subject.view.cluster.cluster_id}"
    return f"{RUN.key_prefix}#{subject.owner}"


def post_what_was_set_aside(
    services: Services, outbox: Outbox, entries: Sequence[SetAside], *, channel: str
) -> None:
    """Name it in the operations channel, at most once an hour: poison seldom comes alone.

    What Slack refuses for good is left: the alarm is raised without it.

    Raises:
        TransientError: Slack takes nothing now.
    """
    if not entries or not channel:
        return
    now = services.now()
    key = f"set-aside-{now:%Y%m%dT%H}"
    if not services.deliveries.claim(_OPERATIONS, [key], now=now):
        return
    try:
        outbox.post(_message(entries), channel=channel, mark=Mark(_OPERATIONS, (key,)))
    except TransientError:
        raise
    except PermanentError:
        pass
    services.deliveries.confirm(_OPERATIONS, [key], now=now)


def _message(entries: Sequence[SetAside]) -> Content:
    named = [f"- {entry.what}: {entry.reason} ({entry.function})" for entry in entries[:_NAMED]]
    if len(entries) > _NAMED:
        named.append(f"- and {len(entries) - _NAMED} more")
    head = "Something could not be read and was set aside; everything else goes on."
    advice = "`stationmaster redrive --dry-run` lists it, `stationmaster redrive` sends it again."
    text = "\n".join([head, *(md.escape(line) for line in named), advice])
    return Content(text=head, blocks=[section(text)])


def _keep(services: Services, records: Sequence[Any], *, what: str, reason: str) -> None:
    payload = {"Records": [*records]}
    set_aside(services, function=NOTIFIER, what=what, reason=reason, payload=payload)
