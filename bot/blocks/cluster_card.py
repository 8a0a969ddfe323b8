"""The one live message of a kept cluster: who uses it, what it costs, when it goes.

The notifier posts it once and edits it in place; `/train cluster show` shows the same to one
person. Every text of foreign origin is bounded, so that any cluster fits into Slack's limits.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from bot.actions import ActionId, ClusterButton
from bot.blocks import cluster_parts as parts
from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.approval import approval_blocks, approved_by
from bot.blocks.elements import (
    Block,
    Content,
    actions,
    asked_again,
    at_most,
    button,
    context,
    fields,
    header,
    paragraph,
    section,
)
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.keeping import is_unapproved
from stationmaster.domain.cluster.leases import Lease, Waiting
from stationmaster.domain.commands.cluster_words import DEFAULT_EXTENSION_S
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.durations import typed_duration
from stationmaster.domain.ids import RunId
from stationmaster.domain.planning.cost import node_group_price
from stationmaster.domain.run.view import ClusterView
from stationmaster.domain.sizes import counted

# Of each phase its emoji, and its name.
_PHASES: Final[dict[ClusterPhase, tuple[str, str]]] = {
    ClusterPhase.REQUESTED: ("\U0001f4e8", "requested"),  # incoming envelope
    ClusterPhase.PROVISIONING: ("\U0001f3d7\ufe0f", "provisioning"),  # building construction
    ClusterPhase.VALIDATING: ("\U0001f50d", "validating"),  # magnifying glass
    ClusterPhase.READY: ("\U0001f7e2", "ready"),  # green circle
    ClusterPhase.DRAINING: ("\u267b\ufe0f", "going away"),  # recycling
    ClusterPhase.RELEASING: ("\u267b\ufe0f", "tearing down"),
    ClusterPhase.RELEASED: ("\u26ab", "gone"),  # black circle
    ClusterPhase.FAILED: ("\u274c", "failed"),  # cross mark
}
EMOJI: Final = {phase: emoji for phase, (emoji, _) in _PHASES.items()}
_MAX_RUNS: Final = 12
_MAX_NAMED_IN_DIALOG: Final = 3


def cluster_card(
    view: ClusterView, *, now: datetime, moved_from: tuple[str, str] | None = None
) -> Content:
    """Draw everything that the channel should see of a kept cluster at `now`.

    Args:
        moved_from: the channel that takes no posts any more, and Slack's word for why.
    """
    cluster = view.cluster
    blocks = [
        header(f"{EMOJI[cluster.phase]} Cluster {cluster.label}: {status(cluster)}"),
        context(_identity(view)),
        *approval_blocks(cluster),
        *paragraph(_making(cluster)),
        fields(_figures(view, now=now)),
        *paragraph(_users(view)),
        *paragraph(_notices(cluster)),
    ]
    if moved_from is not None:
        blocks.append(section(words.moved(*moved_from, what="cluster")))
    if view.is_live:
        usable = cluster.phase is ClusterPhase.READY
        hint = f"`{COMMAND} RECIPE on={cluster.label}` runs on it {md.DOT} " if usable else ""
        blocks.append(context(f"{hint}updated {md.clock(now)}"))
    blocks += cluster_buttons(view)
    return Content(text=headline(cluster), blocks=blocks)


def cluster_milestone(cluster: Cluster) -> str:
    """Make a key that changes whenever the card must not be late, and not with its cost."""
    leases = [f"{lease.run_id}:{lease.nodes}" for lease in cluster.open_leases]
    queue = [waiting.run_id for waiting in cluster.queue]
    return "/".join(
        (
            str(len(cluster.phases) + cluster.folded.get("phases", 0)),
            cluster.phase.value,
            cluster.teardown.value,
            str(cluster.spec.nodes),
            str(cluster.keep_until),
            str(cluster.keep_warned),
            cluster.deleted_by,
            approved_by(cluster.approval),
            cluster.approval.wish.fingerprint if cluster.approval is not None else "",
            ",".join(leases),
            ",".join(queue),
        )
    )


def status(cluster: Cluster) -> str:
    if is_unapproved(cluster):
        return "waiting for approval"
    if cluster.phase is ClusterPhase.READY and cluster.sleeps_since is not None:
        return "ready, without nodes"
    if cluster.phase is ClusterPhase.READY:
        used = cluster.spec.nodes - cluster.free_nodes
        return f"ready, {used} of {cluster.spec.nodes} nodes in use"
    if cluster.teardown is TeardownStatus.FAILED:
        return "teardown gave up for now"
    return _PHASES[cluster.phase][1]


def goes(cluster: Cluster) -> str:
    """Say in mrkdwn when the cluster goes."""
    if cluster.torn_down_at is not None:
        return f"gone since {md.when(cluster.torn_down_at)}"
    if cluster.is_going_away:
        return "now"
    keeps = [lease.keep_s for lease in cluster.open_leases if lease.keep_s]
    after = f"{typed_duration(max(keeps))} after its run" if keeps else ""
    if cluster.keep_until is None:
        return after or "with its last run"
    until = md.when(cluster.keep_until)
    if after:
        return f"{until}, and not before {after}"
    return f"{until}, and not before its runs have ended" if cluster.is_wanted else until


def headline(cluster: Cluster) -> str:
    """Write the card in one line, for notifications."""
    text = f"cluster {md.escape(cluster.label, 80)}: {status(cluster)}"
    if cluster.reason and cluster.phase is ClusterPhase.FAILED:
        text += f", {md.escape(cluster.reason, 200)}"
    return text


def _identity(view: ClusterView) -> str:
    cluster = view.cluster
    is_new = cluster.phase is ClusterPhase.REQUESTED  # a post would ping, an edit does not
    known = cluster.requester if not is_new else None
    asked = [f"by {md.user(known.user_id)}"] if known else []
    return f" {md.DOT} ".join(
        [
            md.code(cluster.cluster_id, 120),
            parts.machines(cluster.spec),
            parts.storage(cluster.spec),
            *asked,
            *filter(None, [approved_by(cluster.approval)]),
        ]
    )


def _making(cluster: Cluster) -> list[str]:
    """Say how far it is while it is made; once it is ready, what its checks found."""
    match cluster.phase:
        case ClusterPhase.REQUESTED:
            return [f"{md.CURRENT} {status(cluster)}"]
        case ClusterPhase.PROVISIONING:
            return parts.provisioning(cluster)
        case ClusterPhase.VALIDATING | ClusterPhase.READY | ClusterPhase.FAILED:
            verdicts = parts.checks(cluster)
            return [*parts.provisioning(cluster), *(["*Checks*"] if verdicts else []), *verdicts]
        case ClusterPhase.DRAINING | ClusterPhase.RELEASING:
            gone = sum(each.deleted_at is not None for each in cluster.resources.values())
            return [f"{md.CURRENT} {gone} of {len(cluster.resources)} resources are gone"]
        case _:
            return []


def _figures(view: ClusterView, *, now: datetime) -> list[tuple[str, str]]:
    cluster = view.cluster
    emulated = " emulated" if view.emulated_speed else ""
    is_final = cluster.final_cost_usd is not None
    cost = f"{md.money_escaped(cluster.cost_usd(now))}{emulated}"
    pairs = [("Cost" if is_final else "Cost so far", cost)]
    if view.is_live:
        pairs.append(("Costs now", f"{md.money_escaped(words.price_per_hour(cluster))} an hour"))
    pairs.append(("Goes" if view.is_live else "Lived", goes(cluster)))
    if cluster.phase is ClusterPhase.READY:
        pairs.append(("Free", f"{cluster.free_nodes} of {cluster.spec.nodes} nodes"))
    if not view.is_live:
        lived = (cluster.torn_down_at or now) - cluster.requested_at
        pairs[-1] = ("Lived", md.duration(lived))
    return pairs


def _users(view: ClusterView) -> list[str]:
    cluster = view.cluster
    lines = []
    leases = sorted(cluster.open_leases, key=lambda lease: lease.granted_at)
    if leases:
        lines += ["*In use by*", *at_most(_MAX_RUNS, [_user_line(view, each) for each in leases])]
    if cluster.queue:
        waiting = [_waiting_line(view, *each) for each in enumerate(cluster.queue, 1)]
        lines += ["*Waiting*", *at_most(_MAX_RUNS, waiting)]
    return lines


def _user_line(view: ClusterView, lease: Lease) -> str:
    began = f"_began {md.ago(lease.granted_at)}_"
    return f"{md.CURRENT} {_named(view, lease.run_id)}  {counted(lease.nodes, 'node')}, {began}"


def _waiting_line(view: ClusterView, place: int, waiting: Waiting) -> str:
    came = f"_came {md.ago(waiting.since)}_"
    return f"{place}. {_named(view, waiting.run_id)}  {counted(waiting.nodes, 'node')}, {came}"


def _named(view: ClusterView, run_id: RunId) -> str:
    run = view.runs.get(run_id)
    by = f" by {md.user(run.request.user_id)}" if run is not None else ""
    return f"{md.code(run_id, 80)}{by}"


def _notices(cluster: Cluster) -> list[str]:
    notices = []
    if cluster.reason and not (cluster.is_going_away and cluster.deleted_by):
        notices.append(f"{md.FAILED} *It failed:* {md.escape(cluster.reason, 600)}")
    if cluster.deleted_by:
        notices.append(f"\U0001f5d1\ufe0f deleted by {md.user(cluster.deleted_by)}")
    if cluster.sleeps_since is not None and not cluster.is_ending:
        spec = cluster.spec
        saved = node_group_price(spec.instance, nodes=spec.nodes)
        notices.append(
            f"\U0001f4a4 no nodes since {md.when(cluster.sleeps_since)}, "
            f"{md.money_escaped(saved)} an hour saved; the next run brings {spec.nodes} back"
        )
    is_warned = cluster.keep_until is not None and cluster.keep_warned == cluster.keep_until
    if is_warned and not cluster.is_going_away:
        notices.append(f"\u26a0\ufe0f *It goes {goes(cluster)}*, unless it is extended")
    if cluster.teardown is TeardownStatus.FAILED:
        notices.append(parts.left_behind(cluster))
    return notices


def cluster_buttons(view: ClusterView) -> list[Block]:
    cluster = view.cluster
    if cluster.is_going_away:
        return []
    value = ClusterButton(cluster_id=cluster.cluster_id).model_dump_json()
    elements = []
    if cluster.phase is not ClusterPhase.FAILED and not is_unapproved(cluster):
        label = f"Extend by {typed_duration(DEFAULT_EXTENSION_S)}"
        elements.append(button(label, action_id=ActionId.EXTEND_CLUSTER, value=value))
    elements.append(
        asked_again(
            button("Delete", action_id=ActionId.DELETE_CLUSTER, value=value),
            title="Delete this cluster?",
            text=what_goes(view),
            confirm="Delete it",
            deny="Keep it",
        )
    )
    return [actions(elements, block_id="cluster_actions")]


def what_goes(view: ClusterView) -> str:
    """Say what a deletion takes away, as briefly as a dialog needs."""
    cluster = view.cluster
    file_system = cluster.spec.file_system
    label = md.escape(cluster.label, 40)
    goes_with = f"{label} goes with its {parts.machines(cluster.spec)}"
    if cluster.spec.eks_name:
        space = cluster.spec.namespace
        what = f"objects in namespace {md.escape(space, 63)} of" if space else "namespace in"
        goes_with = (
            f"{label} goes with its {what} EKS cluster "
            f"{md.escape(cluster.spec.eks_name, 100)}, which stays as it is"
        )
    unsaved = [run for run in view.runs.values() if run.unsaved_reason and run.has_unsaved_results]
    if unsaved and not file_system.existing_id:
        of = unsaved[0].run_id if len(unsaved) == 1 else f"{len(unsaved)} runs"
        others = len(cluster.waiting_runs) - len(unsaved)
        return (
            f"{goes_with}; its file system stays until the results of {md.escape(of, 46)} are "
            f"saved or given up.{f' Runs that end: {others}.' if others else ''}"
        )
    if file_system.existing_id:
        goes_with += f"; file system {file_system.existing_id} stays with all that is on it."
    else:
        goes_with += (
            f" and its file system of {file_system.storage_gib:,} GiB with all that is on it."
        )
    runs = cluster.waiting_runs
    if not runs:
        return f"{goes_with} No run uses it."
    named = ", ".join(md.escape(run_id, 46) for run_id in runs[:_MAX_NAMED_IN_DIALOG])
    more = len(runs) - _MAX_NAMED_IN_DIALOG
    rest = f" and {more} more" if more > 0 else ""
    verb = "This run ends" if len(runs) == 1 else "These runs end"
    return f"{goes_with} {verb}: {named}{rest}."
