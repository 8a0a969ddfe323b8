"""The operations channel: what needs somebody's attention, and belongs to no run's thread.

The notifier posts here, once for each cause, where `operations_channel` is set. What Slack refuses
for good is dropped; the alarms are raised without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.elements import Content, at_most, section
from bot.outbox import Mark, Outbox
from stationmaster.aws.delivery_store import Owner
from stationmaster.aws.set_aside_store import SetAside
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.services import Services

_OPERATIONS: Final = Owner("operations")
_NAMED: Final = 5


def post_what_was_set_aside(
    services: Services, outbox: Outbox, entries: Sequence[SetAside]
) -> None:
    """Name new dead letters, at most once an hour: one seldom comes alone.

    Raises:
        TransientError: Slack takes nothing now.
    """
    if entries:
        key = f"set-aside-{services.now():%Y%m%dT%H}"
        _post_once(services, outbox, key, _set_aside(entries))


def post_orphans(services: Services, outbox: Outbox, findings: Mapping[str, str]) -> None:
    """Name what the account has of clusters that no record explains, once for each cluster.

    `findings` are sentences by the cluster's id.

    Raises:
        TransientError: Slack takes nothing now.
    """
    for cluster_id, finding in findings.items():
        _post_once(services, outbox, f"orphans-{cluster_id}", _orphans(finding))


def _post_once(services: Services, outbox: Outbox, key: str, content: Content) -> None:
    channel, now = services.settings.operations_channel, services.now()
    if not channel or not services.deliveries.claim(_OPERATIONS, [key], now=now):
        return
    try:
        outbox.post(content, channel=channel, mark=Mark(_OPERATIONS, (key,)))
    except TransientError:
        raise
    except PermanentError:
        pass
    services.deliveries.confirm(_OPERATIONS, [key], now=now)


def _set_aside(entries: Sequence[SetAside]) -> Content:
    said = [f"{entry.what}: {entry.reason} ({entry.function})" for entry in entries]
    named = [f"- {line}" for line in at_most(_NAMED, said)]
    head = "Something could not be read and is kept as a dead letter; everything else continues."
    advice = "`stationmaster redrive --dry-run` lists it, `stationmaster redrive` sends it again."
    text = "\n".join([head, *(md.escape(line) for line in named), advice])
    return Content(text=head, blocks=[section(text)])


def _orphans(finding: str) -> Content:
    head = "The account has something that no open cluster explains."
    advice = (
        "The reaper deletes what is surely this deployment's; what may be the only copy of a "
        "result, or somebody's own, stays. Its log says which."
    )
    return Content(text=head, blocks=[section("\n".join([head, md.escape(finding), advice]))])
