"""The receipt at the end of a run or a kept cluster: what was deleted, what it cost, what is left.

The notifier posts it once into the thread, and once more if a failed teardown is finished
later.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from bot.blocks import cluster_parts as parts
from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.approval import approved_by
from bot.blocks.elements import Block, Content, actions, context, fields, header, section
from bot.blocks.progress import goodput_line
from bot.blocks.recoveries import lost_line, sizes_line
from bot.blocks.results import report_button, result_blocks, result_buttons
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.shares import shares
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.run.view import ClusterView, RunView

_MAX_RUNS: Final = 30


def run_receipt(view: RunView, *, now: datetime) -> Content:
    """Write the receipt of a run whose teardown has ended or failed, or whose cluster stays."""
    run, cluster = view.run, view.cluster
    if view.teardown is TeardownStatus.NOT_NEEDED and cluster is not None:
        return _of_kept_cluster(view, cluster, now=now)
    is_clean = view.teardown is TeardownStatus.COMPLETED
    cost = words.cost(view, now=now)
    left = [] if is_clean or cluster is None else cluster.left_behind or cluster.billable_left
    blocks = [
        *_heading(run.request.title, cluster, is_clean=is_clean),
        _figures(view, "Cost", cost, now=now),
    ]
    as_planned = " On AWS the run would cost about what was planned."
    blocks += _emulation(run.emulated_speed, as_planned)
    blocks += _result(view, now=now)
    deleted = _deleted(cluster)
    blocks += deleted
    if cluster is not None and cluster.spec.eks_name:
        blocks.append(context(parts.untouched(cluster.spec)))
    blocks += _price_notes(cluster)
    if left:
        blocks += _still_there(cluster, run.request.user_id)
    elif not deleted:
        blocks.append(context("The run created nothing."))
    text = f"receipt of {md.escape(run.run_id, 120)}: {cost}, " + (
        "nothing billable is left" if is_clean else f"{len(left)} resources are still there"
    )
    return Content(text=text, blocks=blocks)


def cluster_receipt(view: ClusterView, *, now: datetime) -> Content:
    """Write the receipt of a kept cluster whose teardown has completed or has failed.

    It says which part of the cost each run caused; all parts together are the bill.
    """
    cluster = view.cluster
    is_clean = cluster.teardown is TeardownStatus.COMPLETED
    total = md.money_escaped(cluster.cost_usd(now)) + (" emulated" if view.emulated_speed else "")
    lived = md.duration((cluster.torn_down_at or now) - cluster.requested_at)
    deleted = _deleted(cluster)
    blocks = [
        *_heading(f"cluster {cluster.label}", cluster, is_clean=is_clean),
        fields([("Cost", total), ("Lived", lived)]),
        section("\n".join(_bill(view, now=now))),
        *_emulation(view.emulated_speed),
        *_price_notes(cluster),
        *deleted,
    ]
    if not is_clean:
        requester = cluster.requester.user_id if cluster.requester is not None else ""
        blocks += _still_there(cluster, requester)
    elif not deleted:
        blocks.append(context("The cluster created nothing."))
    outcome = "nothing billable is left" if is_clean else "resources are still there"
    text = f"receipt of cluster {md.escape(cluster.label, 60)}: {total}, {outcome}"
    return Content(text=text, blocks=blocks)


def _heading(name: str, cluster: Cluster | None, *, is_clean: bool) -> list[Block]:
    if is_clean:
        title, verdict = "\U0001f9fe Receipt", f"{md.DONE} *Nothing billable is left.*"
    else:
        title = "\u26a0\ufe0f Receipt, not yet final"
        recorded = cluster.teardown_reason if cluster is not None else ""
        reason = md.escape(recorded, 400) or "no reason was recorded"
        verdict = f"{md.FAILED} *The teardown gave up for now:* {reason}"
    return [header(f"{title}: {name}"), section(verdict)]


def _emulation(speed: float | None, more: str = "") -> list[Block]:
    if not speed:
        return []
    return [
        context(
            "The machines are emulated: nothing is billed, and they start "
            f"{speed:g} times as fast as real ones.{more}"
        )
    ]


def _deleted(cluster: Cluster | None) -> list[Block]:
    gone = parts.deleted(cluster) if cluster is not None else []
    return [section("*Deleted*\n" + "\n".join(gone))] if gone else []


def _still_there(cluster: Cluster | None, user_id: str) -> list[Block]:
    ping = f"{md.user(user_id)} " if user_id else ""
    left = parts.left_in_full(cluster) if cluster is not None else []
    return [
        section("\n".join([f"{ping}*Still there, and may cost money*", *left])),
        context("The reaper tries again by itself and posts the result in this thread."),
    ]


def _price_notes(cluster: Cluster | None) -> list[Block]:
    return [context(note) for note in parts.price_notes(cluster.spec)] if cluster else []


def _result(view: RunView, *, now: datetime) -> list[Block]:
    run, links = view.run, result_buttons(view) if view.run.results is not None else []
    said = [approved_by(run.approval), goodput_line(view, now=now), lost_line(run), sizes_line(run)]
    buttons = actions([*links, report_button(run)])
    return [*result_blocks(view), buttons, *(context(each) for each in said if each)]


def _figures(view: RunView, label: str, cost: str, *, now: datetime) -> Block:
    run = view.run
    outcome = [words.status(run)]
    if run.progress is not None:
        outcome.append(words.step(run.progress))
        outcome += words.reported_loss(run.progress, name="final loss")
    took = md.duration((view.torn_down_at or now) - run.requested_at)
    epoch = [("An epoch", md.duration(run.epoch_s))] if run.epoch_s is not None else []
    return fields(
        [
            (label, cost),
            ("Planned", words.planned_cost(run)),
            ("Run", ", ".join(outcome)),
            *epoch,
            ("From request to receipt", took),
        ]
    )


def _of_kept_cluster(view: RunView, cluster: Cluster, *, now: datetime) -> Content:
    """Write what a run on a kept cluster has cost, and what becomes of the cluster."""
    run, cost = view.run, words.cost(view, now=now)
    blocks = [
        header(f"\U0001f9fe Receipt: {run.request.title}"),
        section(f"{md.DONE} The run is over; {words.kept(cluster)}."),
        _figures(view, "Its share of the cost", cost, now=now),
        *_result(view, now=now),
        *_price_notes(cluster),
    ]
    if run.emulated_speed:
        blocks.append(context("The machines are emulated: nothing is billed."))
    if not cluster.is_going_away:
        label = cluster.label
        lines = [
            f"{COMMAND} {run.request.recipe} on={label}",
            f"{COMMAND} cluster extend {label} 2h",
            f"{COMMAND} cluster delete {label}",
        ]
        shown = "\n".join(md.in_code(line, 200) for line in lines)
        blocks.append(section(f"*Use it again, keep it longer, or delete it*\n```{shown}```"))
    text = f"receipt of {md.escape(run.run_id, 120)}: {cost}, {words.kept(cluster)}"
    return Content(text=text, blocks=blocks)


def _bill(view: ClusterView, *, now: datetime) -> list[str]:
    """List each run's share and the cluster's own part; they sum up to the cost."""
    split = shares(view.cluster, now)
    by_cost = sorted(split.runs.items(), key=lambda pair: -pair[1])
    lines = ["*Who caused the cost*", *parts.shares_of_runs(by_cost[:_MAX_RUNS])]
    if hidden := by_cost[_MAX_RUNS:]:
        rest = md.money_escaped(sum(usd for _, usd in hidden))
        lines.append(f"and {len(hidden)} more runs  {rest}")
    lines.append(f"{parts.own_share(view.cluster)}  {md.money_escaped(split.own)}")
    lines.append(f"*together  {md.money_escaped(split.total)}*")
    return lines
