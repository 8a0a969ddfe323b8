"""The receipt at the end of a teardown: what was deleted, what it cost, what is left.

The notifier posts it once into the run's thread, and once more if a failed teardown is finished
later.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.elements import Content, context, fields, header, section
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.view import RunView

_MAX_LINES: Final = 24


def run_receipt(view: RunView, *, now: datetime) -> Content:
    """The receipt of a run whose teardown has completed or has failed."""
    run, cluster = view.run, view.cluster
    is_clean = view.teardown is TeardownStatus.COMPLETED
    cost = words.cost(view, now=now)
    left = [] if is_clean or cluster is None else cluster.left_behind or cluster.billable_left
    if is_clean:
        title, verdict = "\U0001f9fe Receipt", f"{md.DONE} *Nothing billable is left.*"
    else:
        title = "\u26a0\ufe0f Receipt, not yet final"
        recorded = cluster.teardown_reason if cluster is not None else ""
        reason = md.escape(recorded, 400) or "no reason was recorded"
        verdict = f"{md.FAILED} *The teardown gave up for now:* {reason}"
    blocks = [
        header(f"{title}: {run.request.recipe}"),
        section(verdict),
        fields(
            [
                ("Cost", cost),
                ("Planned", md.money_escaped(run.estimated_cost_usd)),
                ("Run", _outcome(run)),
                (
                    "From request to receipt",
                    md.duration((view.torn_down_at or now) - run.requested_at),
                ),
            ]
        ),
    ]
    if run.emulated_speed:
        blocks.append(
            context(
                "The machines are emulated: nothing is billed, and they start "
                f"{run.emulated_speed:g} times as fast as real ones. On AWS the run would cost "
                "about what was planned."
            )
        )
    deleted = _deleted(cluster) if cluster is not None else []
    if deleted:
        blocks.append(section("*Deleted*\n" + "\n".join(deleted)))
    if left:
        lines = [f"{md.FAILED} {md.code(name, 120)}" for name in left[:_MAX_LINES]]
        if len(left) > _MAX_LINES:
            lines.append(f"and {len(left) - _MAX_LINES} more")
        blocks.append(section("*Still there, and may cost money*\n" + "\n".join(lines)))
        blocks.append(
            context("The reaper tries again by itself and posts the result in this thread.")
        )
    elif not deleted:
        blocks.append(context("The run created nothing."))
    text = f"receipt of {md.escape(run.run_id, 120)}: {cost}, " + (
        "nothing billable is left" if is_clean else f"{len(left)} resources are still there"
    )
    return Content(text=text, blocks=blocks)


def _outcome(run: Run) -> str:
    parts = [words.status(run)]
    if run.progress is not None:
        parts.append(f"step {run.progress.step:,} of {run.progress.total_steps:,}")
        parts.append(words.loss(run.progress.loss_nats, name="final loss"))
    return ", ".join(parts)


def _deleted(cluster: Cluster) -> list[str]:
    gone = [one for one in cluster.resources.values() if one.status is ResourceStatus.DELETED]
    gone.sort(key=lambda one: one.deleted_at or one.requested_at)
    lines = []
    for one in gone[:_MAX_LINES]:
        lived = (one.deleted_at or one.requested_at) - one.requested_at
        cost = one.cost_usd(one.deleted_at or one.requested_at)
        price = f", {md.money_escaped(cost)}" if one.price_per_hour_usd else ""
        name = md.code(one.name, 70)
        lines.append(f"{md.DONE} {one.kind.value} {name}  _{md.duration(lived)}{price}_")
    if len(gone) > _MAX_LINES:
        lines.append(f"and {len(gone) - _MAX_LINES} more")
    return lines
