"""The receipt of a kept cluster: what it cost, which part each run caused, what is left.

The notifier posts it once into the cluster's thread, and once more if a failed teardown is finished
later. All parts together are the bill.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from bot.blocks import cluster_parts as parts
from bot.blocks import mrkdwn as md
from bot.blocks.elements import Content, context, fields, header, section
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.shares import shares
from stationmaster.domain.run.view import ClusterView

_MAX_RUNS: Final = 30


def cluster_receipt(view: ClusterView, *, now: datetime) -> Content:
    """Write the receipt of a cluster whose teardown has completed or has failed."""
    cluster = view.cluster
    is_clean = cluster.teardown is TeardownStatus.COMPLETED
    emulated = " emulated" if view.emulated_speed else ""
    total = f"{md.money_escaped(cluster.cost_usd(now))}{emulated}"
    if is_clean:
        title, verdict = "\U0001f9fe Receipt", f"{md.DONE} *Nothing billable is left.*"
    else:
        title = "\u26a0\ufe0f Receipt, not yet final"
        reason = md.escape(cluster.teardown_reason, 400) or "no reason was recorded"
        verdict = f"{md.FAILED} *The teardown gave up for now:* {reason}"
    lived = md.duration((cluster.torn_down_at or now) - cluster.requested_at)
    blocks = [
        header(f"{title}: cluster {cluster.label}"),
        section(verdict),
        fields([("Cost", total), ("Lived", lived)]),
        section("\n".join(_bill(view, now=now))),
    ]
    if view.emulated_speed:
        blocks.append(
            context(
                "The machines are emulated: nothing is billed, and they start "
                f"{view.emulated_speed:g} times as fast as real ones."
            )
        )
    blocks += [context(note) for note in parts.price_notes(cluster.spec)]
    gone = parts.deleted(cluster)
    if gone:
        blocks.append(section("*Deleted*\n" + "\n".join(gone)))
    if not is_clean:
        lines = parts.left_in_full(cluster)
        blocks.append(section("\n".join(["*Still there, and may cost money*", *lines])))
        blocks.append(
            context("The reaper tries again by itself and posts the result in this thread.")
        )
    elif not gone:
        blocks.append(context("The cluster created nothing."))
    outcome = "nothing billable is left" if is_clean else "resources are still there"
    text = f"receipt of cluster {md.escape(cluster.label, 60)}: {total}, {outcome}"
    return Content(text=text, blocks=blocks)


def _bill(view: ClusterView, *, now: datetime) -> list[str]:
    """List each run's share and the cluster's own part; they sum up to the cost."""
    split = shares(view.cluster, now)
    by_cost = sorted(split.runs.items(), key=lambda pair: -pair[1])
    lines = ["*Who caused the cost*"]
    lines += [
        f"{md.code(run_id, 80)}  {md.money_escaped(usd)}" for run_id, usd in by_cost[:_MAX_RUNS]
    ]
    hidden = by_cost[_MAX_RUNS:]
    if hidden:
        rest = md.money_escaped(sum(usd for _, usd in hidden))
        lines.append(f"and {len(hidden)} more runs  {rest}")
    own = md.money_escaped(split.own)
    lines.append(f"{parts.own_share(view.cluster)}  {own}")
    lines.append(f"*together  {md.money_escaped(split.total)}*")
    return lines
