"""What needs somebody's attention, and belongs to no run's thread.

The notifier posts it once for each cause: the budget of a month in its channel, all else in the
operations channel, where `operations_channel` is set. What Slack refuses for good is dropped; the
alarms are raised without it.
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
from stationmaster.domain.reactions.budgets import ALL, percent_reached
from stationmaster.domain.reactions.seen import MonthSpent
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
        _post_once(services, outbox, _OPERATIONS, key, _set_aside(entries))


def post_orphans(services: Services, outbox: Outbox, findings: Mapping[str, str]) -> None:
    """Name what the account has of clusters that no record explains, once for each cluster.

    `findings` are sentences by the cluster's id.

    Raises:
        TransientError: Slack takes nothing now.
    """
    for cluster_id, finding in findings.items():
        key = f"orphans-{cluster_id}"
        _post_once(services, outbox, _OPERATIONS, key, _orphans(finding))


def post_budgets(services: Services, outbox: Outbox, reached: Sequence[MonthSpent]) -> None:
    """Say how much of the budget of a channel's month is spent: each percentage once.

    Raises:
        TransientError: Slack takes nothing now.
    """
    note = " emulated" if services.settings.emulated_speed else ""
    for each in reached:
        owner = Owner(f"month/{each.channel_id}/{each.month}")
        percent = percent_reached(each.usd, each.budget_usd)
        key, content = f"{each.budget_usd:.2f}/{percent}", _budget(each, percent, note)
        _post_once(services, outbox, owner, key, content, channel=each.channel_id)


def _post_once(
    services: Services, outbox: Outbox, owner: Owner, key: str, content: Content, channel: str = ""
) -> None:
    channel, now = channel or services.settings.operations_channel, services.now()
    if not channel or not services.deliveries.claim(owner, [key], now=now):
        return
    try:
        outbox.post(content, channel=channel, mark=Mark(owner, (key,)))
    except TransientError:
        raise
    except PermanentError:
        pass
    services.deliveries.confirm(owner, [key], now=now)


def _budget(spent: MonthSpent, percent: int, note: str) -> Content:
    budget = f"this channel's budget of {md.money(spent.budget_usd)} for {spent.month}"
    head = f"{md.WARNING} {percent} % of {budget} is spent: {md.money(spent.usd)}{note}"
    end = (
        "Its runs are stopped: each writes its checkpoint and saves its results. Kept clusters go "
        "once no run uses them, and nothing more starts. "
    )
    advice = f"{end if percent == ALL else ''}`/train cost` shows on what."
    return Content(text=head, blocks=[section(f"{head}\n{advice}")])


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
