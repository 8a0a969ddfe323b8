"""The names of phases and teardowns in the channel."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

from bot.blocks import mrkdwn as md
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.progress_lines import EvaluatedLine, ProgressLine
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.reactions.run import POLICY
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import (
    DataStaged,
    ProgressReported,
    RunPhase,
    StagingWork,
    TrainingEvaluated,
)
from stationmaster.domain.run.stall import waits_until
from stationmaster.domain.run.view import RunView

# Of each phase the emoji of the header, as an escape because sources are ASCII, and its name.
_PHASES: Final[dict[RunPhase, tuple[str, str]]] = {
    RunPhase.REQUESTED: ("\U0001f4e8", "requested"),  # incoming envelope
    RunPhase.AWAITING_APPROVAL: ("\u270b", "waiting for approval"),  # raised hand
    RunPhase.QUEUED: ("\u23f3", "queued"),  # hourglass
    RunPhase.PROVISIONING: ("\U0001f3d7\ufe0f", "provisioning"),  # building construction
    RunPhase.VALIDATING: ("\U0001f50d", "validating the cluster"),  # magnifying glass
    RunPhase.STAGING: ("\U0001f4e5", "bringing the data"),  # inbox tray
    RunPhase.SUBMITTING: ("\U0001f4e6", "submitting the job"),  # package
    RunPhase.RUNNING: ("\U0001f682", "training"),  # locomotive
    RunPhase.RECOVERING: ("\U0001f6a7", "recovering"),  # construction sign
    RunPhase.SAVING: ("\U0001f4be", "saving results"),  # floppy disk
    RunPhase.SUCCEEDED: ("\u2705", "succeeded"),  # white check mark
    RunPhase.FAILED: ("\u274c", "failed"),  # cross mark
    RunPhase.STOPPED: ("\U0001f6d1", "stopped"),  # stop sign
}
BEST: Final = "the best by held-out loss"
EMOJI: Final = {phase: emoji for phase, (emoji, _) in _PHASES.items()}
STATUS: Final = {phase: name for phase, (_, name) in _PHASES.items()}


def moved(channel_id: str, code: str, *, what: str) -> str:
    """Say why a run or a cluster is followed in a direct conversation."""
    return (
        f"\u26a0\ufe0f {md.channel(channel_id)} takes no posts of this app any more "
        f"({md.escape(code, 60)}), so the {what} is followed here, with the person who asked for "
        "it."
    )


def cost(view: RunView, *, now: datetime) -> str:
    """Write what a run has cost until `now`, as mrkdwn; marked where the machines are emulated."""
    return md.money_escaped(view.cost_usd(now)) + (" emulated" if view.run.emulated_speed else "")


def status(run: Run) -> str:
    """Write the run's status in a few words; a requested stop shows before it has happened.

    The end of a run comes before the saving of its results.
    """
    if run.phase is RunPhase.SAVING:
        ended = outcome_of(run)
        so_far = "" if ended is RunPhase.SUCCEEDED else f"{STATUS[ended]}, "
        return f"{so_far}{STATUS[run.phase]}"
    if run.is_stopping and not run.phase.is_terminal:
        return "stopping"
    return STATUS[run.phase]


def emoji(run: Run) -> str:
    """Return the status's emoji: a failed run has failed also while its results are saved."""
    ended = outcome_of(run)
    return EMOJI[run.phase if ended is RunPhase.SUCCEEDED else ended]


_STAGED: Final[dict[StagingWork, str]] = {
    "restoring": "brought back",
    "converting": "of weights downloaded and converted",
    "looking": "looked at",
    "linking": "linked",
    "copying": "copied",
    "preparing": "prepared",
}


def staging(run: Run) -> list[str]:
    """Say how far a run's data is."""
    staging = run.staging
    if staging is not None and staging.linked and run.request.link_reason:
        return [f"linked, not copied: {md.escape(run.request.link_reason, 300)}"]
    if staging is None or staging.root:
        return []
    verb = _STAGED[staging.work]
    if staging.work == "copying" and staging.data_id:
        return [f"{num_bytes(staging.num_bytes)} copied"]
    if not staging.total_bytes:
        return []
    share = staging.done_bytes / staging.total_bytes
    done, total = num_bytes(staging.done_bytes), num_bytes(staging.total_bytes)
    return [f"{done} of {total} {verb}, {share:.0%}"]


def staged(event: DataStaged) -> str:
    """Say what came of linking, copying or preparing a run's data."""
    counts = ", ".join(
        f"{number:,} {name.replace('_', ' ')}" for name, number in event.counts.items()
    )
    took, size = md.duration(event.seconds), num_bytes(event.num_bytes)
    match event.work:
        case "converting":
            done = "were converted before" if event.was_there else f"converted in {took}"
            return f"weights {done}: {event.num_files:,} files, {size}"
        case "restoring" if event.was_there:
            return f"brought back before: {counts}"
        case _ if event.was_there:
            return f"data was there already: {counts}"
        case "restoring":
            return f"brought back in {took}: {counts}, {size}"
        case "looking":
            return f"data is there, looked at in {took}: {counts}, {size}"
        case "preparing":
            return f"data prepared in {took}: {counts}"
        case "linking":
            return (
                f"data linked in {took}, not copied: {counts}, {size}; names and sizes are those "
                "of S3, contents come when they are first read"
            )
        case _:
            return f"data copied in {took}: {counts}, {size}"


def num_bytes(count: float) -> str:
    """Write bytes: 1.5 GB, 12 MB, 900 bytes."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def teardown_status(view: RunView) -> str:
    """Say in one sentence where the teardown is; "" while the run is alive."""
    match view.teardown:
        case TeardownStatus.NOT_STARTED:
            return "teardown is about to start" if view.run.phase.is_terminal else ""
        case TeardownStatus.RUNNING:
            resources = view.cluster.resources.values() if view.cluster is not None else ()
            gone = sum(resource.deleted_at is not None for resource in resources)
            return f"tearing down: {gone} of {len(resources)} resources are gone"
        case TeardownStatus.COMPLETED:
            return "torn down: nothing billable is left"
        case TeardownStatus.FAILED:
            return "teardown gave up for now; the reaper tries again"
        case TeardownStatus.NOT_NEEDED:
            # The card stays as it is, whatever becomes of the cluster; the receipt says more.
            label = view.cluster.label if view.cluster is not None else ""
            return f"cluster {md.code(label, 60)} was kept after it"


def kept(cluster: Cluster) -> str:
    """Say in mrkdwn what becomes of a kept cluster once a run has left it."""
    name = f"cluster {md.code(cluster.label, 60)}"
    if cluster.is_going_away:
        return f"{name} goes away as well; its receipt follows on its own card"
    price = f"and costs {md.money_escaped(price_per_hour(cluster))} an hour"
    if cluster.keep_until is None:
        return f"{name} stays until its other runs have ended {price}"
    others = ", and until its other runs have ended," if cluster.is_wanted else ""
    return f"{name} stays until {md.when(cluster.keep_until)}{others} {price}"


def price_per_hour(cluster: Cluster) -> float:
    """Return the USD an hour of the cluster's parts that exist now."""
    return sum(
        resource.price_per_hour_usd
        for resource in cluster.resources.values()
        if resource.status is not ResourceStatus.DELETED
    )


def queueing(view: RunView) -> str:
    """Say why a run waits in its cluster's queue: "place 1 of 2: 1 of 4 nodes free, ..."."""
    cluster, place = view.cluster, view.place_in_queue
    if view.run.reason:
        return md.escape(view.run.reason, 300)  # it waits for something else
    if cluster is None or place is None:
        return ""
    if cluster.sleeps_since is not None or cluster.resizes_from == 0:
        return f"the {cluster.spec.nodes} nodes of the cluster come back first"
    least = view.run.request.min_nodes
    nodes = f"{f'{least} to ' if least is not None else ''}{view.run.placement.nodes}"
    return (
        f"place {place} of {len(cluster.queue)}: {cluster.free_nodes} of {cluster.spec.nodes} "
        f"nodes free, {nodes} wanted"
    )


def step(progress: ProgressReported | ProgressLine) -> str:
    """Say how far training is: "step 3 of 10", or "step 3" where the total is not known."""
    of = f" of {progress.total_steps:,}" if progress.total_steps > 0 else ""
    return f"step {progress.step:,}{of}"


def planned_cost(run: Run) -> str:
    """Write what the run was planned to cost, as mrkdwn."""
    return (
        "open: its command decides"
        if run.request.program
        else md.money_escaped(run.estimated_cost_usd)
    )


def loss(value: float | None, *, name: str = "loss") -> str:
    """Write a loss as part of a sentence: "loss 2.345", or "loss is not finite"."""
    if value is None or not math.isfinite(value):
        return f"{name} is not finite"
    return f"{name} {md.loss(value)}"


def reported_loss(progress: ProgressReported, *, name: str = "loss") -> list[str]:
    """Write a progress line's loss as part of a sentence; nothing where there is none."""
    return [loss(progress.loss_nats, name=name)] if progress.has_loss else []


def evaluation(event: TrainingEvaluated | EvaluatedLine) -> str:
    """Say what the newest evaluation on held-out samples found."""
    if event.top1 is not None:
        top5 = f", top-5 {event.top5:.1%}" if event.top5 is not None else ""
        return f"top-1 {event.top1:.1%}{top5}"
    shown = loss(event.loss_nats)
    return shown if event.perplexity is None else f"{shown}, perplexity {event.perplexity:,.1f}"


def wait_for_node(run: Run) -> list[str]:
    """Say until when a run that lost a node waits for another one, and at what price."""
    until = waits_until(run, restart_limit=POLICY.restart_limit)
    if until is None or run.request.min_nodes is not None:
        return []  # on a range, it continues with those that are left
    waits, price = md.when(until), md.money_escaped(run.price_per_hour_usd)
    return [f"It waits for another node until {waits}, at up to {price} an hour, or else ends"]
