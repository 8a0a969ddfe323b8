"""The line that the thread of a run has for an event.

What is posted, and which events share a line, is decided in `thread`.
"""

from __future__ import annotations

from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.approval import approval_line
from bot.blocks.failures import recovery_line
from bot.blocks.recoveries import proof_line
from bot.blocks.results import backup_line, export_line, push_line, results_line
from bot.blocks.running import apart_line, detection_line, network_line
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import ClusterEvent, RoomLow
from stationmaster.domain.cluster.replacements import MAX_REPLACED
from stationmaster.domain.reactions.ending import stop_reason
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import attempt_number
from stationmaster.domain.run.events import RunEvent, RunPhase
from stationmaster.domain.sizes import counted

ThreadEvent = RunEvent | ClusterEvent
"""An event that may be posted in a run's thread: of the run, or of the cluster that it leases."""

# The longest reason that was seen, of nodes whose device plugin is missing, has 371 characters.
_WHY: Final = 900
_MAX_NAMES: Final = 6
_TABLE: Final = 1_800


def line_of(same: list[ThreadEvent], run: Run) -> str:
    """Return what is posted of events that share a line: of one, or of neighbours alike."""
    first = same[0]
    match first:
        case ev.PodChanged():
            return _pods([event for event in same if isinstance(event, ev.PodChanged)], run)
        case cl.PluginReady():
            names = [event.plugin for event in same if isinstance(event, cl.PluginReady)]
            return f"{md.DONE} ready: {_names(names)}"
        case cl.ResourceCreated():
            return _resources(same)
        case ev.PhaseChanged():
            return _phase(first, run)
        case ev.PreflightWarned() | cl.ClusterPreflightWarned():
            return preflight_line(first)
        case cl.CheckFinished():
            return check_line(first)
        case ev.StopRequested():
            if first.why:
                return f"\U0001f6d1 the run is {md.escape(first.why, 400)}"
            return "\U0001f6d1 the run was asked to stop; its card says by whom"
        case ev.BudgetReached():
            budget = md.money(run.request.budget_usd or 0)
            spent = f"{first.percent} % of its budget of {budget}: {md.money(first.spent_usd)}"
            return f"{md.WARNING} {md.user(run.request.user_id)} the run has cost {spent}"
        case ev.BudgetChanged():
            return f"\u25b8 its budget is {md.money(first.usd)} from now on"
        case ev.CapacityEnding():
            return f"{md.WARNING} {md.escape(first.reason, 400)}"
        case ev.ClusterWarning():
            times = f" ({first.count} times)" if first.count > 1 else ""
            name = md.code(_short(first.object_name, run), 80)
            reason, message = md.escape(first.reason, 80), md.escape(first.message, 400)
            return f"{md.WARNING} {name} {reason}{times}: {message}"
        case ev.NodeLost():
            lost = f"{md.WARNING} node {md.code(first.node, 80)} is lost: {md.escape(first.reason)}"
            return ". ".join([lost, *words.wait_for_node(run)])
        case ev.NetworkObserved():
            return network_line(first, run)
        case ev.PodsApart():
            return apart_line(first, run)
        case ev.TroubleDetected():
            return detection_line(first.detection)
        case ev.NodeTakenBack():
            return taken_back_line(first, run)
        case ev.NodeRecovered():
            return f"{md.DONE} node {md.code(first.node, 80)} is ready again"
        case cl.SizeSettled():
            return settled_line(first)
        case cl.JobKindChosen():
            where = f", in namespace {md.escape(first.queue.namespace, 63)}" if first.queue else ""
            return f"\u25b8 the job will be a {first.kind}{where}: the cluster has its operator"
        case cl.ZoneGivenUp():
            return zone_line(first)
        case RoomLow():
            return room_line(first, f" {md.user(run.request.user_id)}")
        case cl.NodeReplacementBegan() | cl.NodeReplaced():
            return replacement_line(first)
        case _ if isinstance(first, ev.ResultsEvent):
            return results_line(first, run)
        case _ if isinstance(first, ev.BackupEvent):
            return backup_line(first)
        case _ if isinstance(first, ev.RunRequested | ev.ApprovalEvent):
            return approval_line(first, run)
        case ev.ExportEnded():
            return export_line(first)
        case ev.ResultsPushed() | ev.ResultsNotPushed():
            return push_line(first)
        case _:
            return _training_line(first, run)


def preflight_line(event: ev.PreflightWarned | cl.ClusterPreflightWarned) -> str:
    """Say what may be lacking; of a cluster also while it is made, and later."""
    when = "before the start: " if isinstance(event, ev.PreflightWarned) else ""
    return "\n".join(f"{md.WARNING} {when}{md.escape(each, 400)}" for each in event.findings)


def taken_back_line(event: ev.NodeTakenBack, run: Run) -> str:
    """Say that AWS takes a spot node back, and where the run will continue."""
    step = run.last_checkpoint_step
    then = "from its last checkpoint" + (f", step {step:,}," if step is not None else "")
    node = md.code(event.node, 80)
    return (
        f"{md.WARNING} spot node {node} is being taken back by AWS; the run goes on {then} once "
        "there is another node"
    )


def _training_line(event: ThreadEvent, run: Run) -> str:
    match event:
        case ev.NodesLeased():
            nodes = counted(event.nodes, "node")
            return f"\u25b8 it has {nodes} of {run.request.node_words}"
        case ev.JobSubmitted():
            return f"\U0001f4e6 job {md.code(event.job, 80)} submitted"
        case ev.JobConditionChanged():
            said = f": {md.escape(event.message, 300)}" if event.message else ""
            mark = md.WARNING if event.condition in ("Failed", "Restarting") else "\u25b8"
            return f"{mark} job is {event.condition.lower()}{said}"
        case ev.JobDisappeared():
            name = md.code(event.job, 80)
            return f"{md.FAILED} job {name} was deleted from the cluster before it had ended"
        case ev.AttemptStarted() if event.price_per_hour_usd is not None:
            nodes = counted(event.placement.nodes, "node")
            price = md.money_escaped(event.price_per_hour_usd)
            return f"\u2194\ufe0f its job starts on {nodes}, {price} an hour"
        case ev.AttemptStarted():
            begins = f"\u21bb attempt {attempt_number(event.attempt_id)} begins"
            if event.bad_node:
                begins += f", with another machine in place of node {md.code(event.bad_node, 80)},"
            return f"{begins} after {md.escape(event.after, 400)}"
        case ev.DataStaged(work="linking"):
            why = md.escape(run.request.link_reason, 300)
            return f"{md.DONE} {words.staged(event)}. Linked because {why}"
        case ev.DataStaged():
            return f"{md.DONE} {words.staged(event)}"
        case ev.DataUnlinked():
            return f"{md.WARNING} data is copied, not linked: {md.escape(event.reason, 600)}"
        case ev.TrainingStarted():
            parts = [counted(event.total_steps, "step")]
            if event.world_size:
                parts.append(counted(event.world_size, "rank"))
            if event.num_parameters:
                parts.append(f"{md.count(event.num_parameters)} parameters")
            return f"\U0001f682 training started: {', '.join(parts)}"
        case ev.TrainingEvaluated():
            return f"\U0001f4cf step {event.step:,}, held-out: {words.evaluation(event)}"
        case ev.CheckpointSaved():
            took = f" in {event.duration_s:.2g} s" if event.duration_s is not None else ""
            return f"\U0001f4be checkpoint at step {event.step:,}{took}"
        case ev.WorkersRestarting():
            pod = md.code(_short(event.pod, run), 80)
            return f"{md.WARNING} workers restart in {pod}: {md.escape(event.reason, 300)}"
        case ev.ProcessFailed():
            pod = md.code(_short(event.pod, run), 80)
            said = ": ".join(part for part in (event.process, event.line) if part)
            if run.is_stopping:
                return f"\u25b8 {pod} ended at the stop: {md.escape(said, 600)}"
            return f"{md.FAILED} {pod}: {md.escape(said, 600)}"
        case ev.TrainingResumed():
            return f"\u21bb training resumed from step {event.step:,}"
        case ev.TrainingRecovered():
            return proof_line(event.recovery, run)
        case ev.TrainingReportedFailure(restarting=True):
            return f"{md.WARNING} the workers start again: {md.escape(event.reason, 600)}"
        case ev.TrainingReportedFailure():
            return f"{md.FAILED} the trainer says: {md.escape(event.reason, 600)}"
        case ev.TrainingFinished():
            final = f", loss {md.loss(event.loss_nats)}" if event.loss_nats is not None else ""
            written = [
                f"> {md.code(each.prompt, 200)} {md.escape(each.text, 400)}"
                for each in event.samples
            ]
            if event.best_step is not None:
                final += f"; the model is of step {event.best_step:,}, {words.BEST}"
            return "\n".join([f"\U0001f3c1 last step {event.step:,} taken{final}", *written])
        case _:
            return f"\u25b8 {event.type}"


def _phase(event: ev.PhaseChanged, run: Run) -> str:
    # Who asked for a stop was posted with the request.
    said = "" if event.reason == stop_reason(run) else event.reason.replace(f"{run.run_id}-", "")
    reason = f": {md.escape(said, 600)}" if said else ""
    ping = f" {md.user(run.request.user_id)}" if _pings(event, run) else ""
    if event.phase.is_terminal:
        return f"{words.EMOJI[event.phase]} *run {words.STATUS[event.phase]}*{ping}{reason}"
    if event.phase is RunPhase.RUNNING and (recovered := recovery_line(event, run)):
        return recovered
    if event.phase is RunPhase.SAVING and said:
        return f"{md.FAILED} *training failed*{ping}{reason}; its results are being saved"
    if event.phase is RunPhase.RECOVERING and said.startswith(ev.CHANGE):
        return f"\u2194\ufe0f its job ends for {md.escape(said, 600)}"
    mark = md.WARNING if event.phase is RunPhase.RECOVERING else "\u25b8"
    return f"{mark} *{words.STATUS[event.phase]}*{reason}"


def _pings(event: ev.PhaseChanged, run: Run) -> bool:
    """Say whether the person who asked for the run has to know: its success, its failure once, and
    that nobody approved it."""
    match event.phase:
        case RunPhase.SUCCEEDED | RunPhase.SAVING:
            return True
        case RunPhase.FAILED:
            return run.entered(RunPhase.SAVING) is None  # else it was posted before
        case RunPhase.STOPPED:
            return not (run.is_approved or run.approval_refused_by or run.is_stopping)
        case _:
            return False


def _resources(same: list[ThreadEvent]) -> str:
    named = [
        f"{event.kind.value} {md.code(event.name, 80)}"
        for event in same
        if isinstance(event, cl.ResourceCreated)
    ]
    return f"{md.DONE} {', '.join(named[:_MAX_NAMES])} ready"


def _pods(same: list[ev.PodChanged], run: Run) -> str:
    first = same[0]
    names = _names([_short(event.pod, run) for event in same])
    where = f" on {md.code(first.node, 80)}" if first.node and len(same) == 1 else ""
    reason = md.escape(first.reason, 80)
    said = f": {md.escape(first.message, 300)}" if first.message else ""
    if is_failure(first):
        exited = f" with exit code {first.exit_code}" if first.exit_code is not None else ""
        because = f" ({reason})" if reason else ""
        mark = "\u25b8" if run.is_stopping else md.FAILED
        return f"{mark} {names} ended{exited}{because}{said}"
    again = f", restart {first.restarts}" if first.restarts else ""
    match first.phase:
        case "Pending" if first.node:
            return f"\u25b8 {names} scheduled{where}{f' ({reason})' if reason else ''}"
        case "Pending":
            return f"\u25b8 {names} pending{f' ({reason})' if reason else ''}{said}"
        case "Running":
            return f"{md.DONE} {names} running{where}{again}"
        case "Succeeded":
            return f"{md.DONE} {names} finished"
        case "Deleted":
            return f"\u25b8 {names} gone"
        case _:
            return f"{md.WARNING} {names}: {first.phase.lower()}{again}{said}"


def _names(names: list[str]) -> str:
    shown = ", ".join(md.code(name, 80) for name in names[:_MAX_NAMES])
    return f"{shown} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else shown


def _short(name: str, run: Run) -> str:
    """Shorten a pod's name by the run id that each begins with."""
    return name.removeprefix(f"{run.run_id}-")


def is_failure(event: ThreadEvent) -> bool:
    """Say whether it reports a container that failed."""
    return isinstance(event, ev.PodChanged) and (
        event.phase == "Failed" or bool(event.exit_code) or event.reason == "OOMKilled"
    )


def check_line(event: cl.CheckFinished) -> str:
    """Say what a check has found; in full where it failed: the sentence ends with what to do."""
    mark, limit = (md.DONE, 300) if event.passed else (md.FAILED, _WHY)
    line = f"{mark} check *{md.escape(event.check, 80)}*: {md.escape(event.detail, limit)}"
    return f"{line}\n{md.code_block(event.table, _TABLE)}" if event.table else line


def settled_line(event: cl.SizeSettled) -> str:
    """Say with how many nodes a cluster continues, because AWS has no more."""
    nodes = counted(event.nodes, "node")
    return f"{md.WARNING} it goes on with {nodes}: {md.escape(event.reason, 300)}"


def zone_line(event: cl.ZoneGivenUp) -> str:
    """Say where AWS has no instances or storage, and where they are requested next."""
    lacking = f"{event.nodes} x {md.escape(event.instance_type, 40)} free"
    if event.lacking is ResourceKind.FILE_SYSTEM:
        lacking = "room for a file system"
    here, there = md.escape(event.zone, 40), md.escape(event.next_zone, 40)
    return f"{md.WARNING} no {lacking} in {here}, trying {there}"


def room_line(event: RoomLow, ping: str) -> str:
    """Say that a cluster's file system is almost full, and what to do."""
    free = f"{event.free_gib:,} of {event.size_gib:,} GiB are free"
    return (
        f"{md.WARNING} *its file system is almost full*{ping}: {free}; delete what is not "
        "needed in /fsx/runs and /fsx/data, or use a cluster with a larger file_system="
    )


def replacement_line(event: cl.NodeReplacementBegan | cl.NodeReplaced) -> str:
    """Say that a node failed a check and another one comes in its place, or is there."""
    node = md.code(event.node, 80)
    if isinstance(event, cl.NodeReplaced):
        return f"{md.DONE} another node came for {node}; every check begins anew"
    return (
        f"{md.WARNING} node {node} failed check *{md.escape(event.check, 80)}* and is replaced "
        f"({event.number} of at most {MAX_REPLACED}): {md.escape(event.reason, _WHY)}"
    )
