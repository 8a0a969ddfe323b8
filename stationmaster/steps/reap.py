"""The reaper: on its own schedule, finishes what crashed workflows left undone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from stationmaster.aws.delivery_store import of_run
from stationmaster.aws.workflows import pass_name, train_name
from stationmaster.cluster_upkeep import follow_up, set_clock, start_pass
from stationmaster.deciding import look_at_approval
from stationmaster.domain.census import Census, count
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import LOW, ClusterPhase, RoomLow
from stationmaster.domain.errors import PermanentError, StationmasterError
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import NOT_HELPED
from stationmaster.domain.reactions import cluster as cluster_reactions
from stationmaster.domain.reactions.cluster import LookedAfter
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import CardMissing, LeaseFound
from stationmaster.domain.reactions.workflow import GRACE, Do, RecordCrash, WorkflowFound
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.log_keys import bound
from stationmaster.saving_reactions import settle_saving
from stationmaster.services import Services
from stationmaster.setting_aside import set_aside
from stationmaster.steps.keep_clock import look_at_clock
from stationmaster.steps.parts.budgets import look_at_budget
from stationmaster.steps.parts.leftovers import is_held
from stationmaster.steps.parts.records import change_phases, run_left
from stationmaster.steps.record_events import record_dead_execution
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_run import release_run
from stationmaster.steps.start_teardown import start_teardown
from stationmaster.waiting import notify_waiting_runs

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Open:
    """What was open when the reaper began; None where it could not be listed."""

    runs: list[Run] | None
    clusters: list[Cluster] | None


def list_open(services: Services) -> Open:
    """List every open run and cluster; what cannot be listed is logged."""
    return Open(
        runs=_listed("runs", services.runs.list_open),
        clusters=_listed("clusters", services.cluster_states.list_open),
    )


def reap(services: Services, found: Open | None = None) -> list[str]:
    """Look at every open run and cluster; returns the ids of those that needed help.

    `found` is what is open, where it has been listed already. One that cannot be helped is logged,
    and does not keep the others from being looked at.
    """
    found = list_open(services) if found is None else found
    runs = [
        run.run_id
        for run in found.runs or []
        if _is_helped("run_id", run.run_id, partial(_help_run, services, run))
    ]
    clusters = [
        cluster.cluster_id
        for cluster in found.clusters or []
        if _is_helped("cluster_id", cluster.cluster_id, partial(_help_cluster, services, cluster))
    ]
    return list(dict.fromkeys([*runs, *clusters]))


def take_census(services: Services, found: Open, *, num_helped: int, num_orphans: int) -> Census:
    """Count what is open, by what the table says; what could not be listed is asked for again."""
    runs, clusters = found.runs, found.clusters
    return count(
        services.runs.list_open() if runs is None else runs,
        services.cluster_states.list_open() if clusters is None else clusters,
        num_helped=num_helped,
        num_orphans=num_orphans,
        now=services.now(),
    )


def _listed(what: str, list_all: Callable[[], list[T]]) -> list[T] | None:
    try:
        return list_all()
    except StationmasterError:
        logger.exception(NOT_HELPED, extra={"subject": f"all {what}"})
        return None


def _is_helped(key: str, subject: str, help_it: Callable[[], bool]) -> bool:
    """Say whether it needed help and got it; a failure stops nothing else."""
    with bound({key: subject}):
        try:
            return help_it()
        except Exception:
            logger.exception(NOT_HELPED, extra={"subject": subject})
            return False


def _help_run(services: Services, run: Run) -> bool:
    if run.awaits_card and run.phase is RunPhase.REQUESTED and not _has_card(services, run):
        without = decide(run, CardMissing(services.now()), POLICY)
        change_phases(services, run, without)
        return bool(without)
    is_due = look_at_approval(services, run)
    if run.awaits_approval:
        return is_due
    look_at_budget(services, run)
    status = services.workflows.train_status(run.run_id, run.passes)
    reactions = decide(run, WorkflowFound(services.now(), status), POLICY)
    settle_saving(services, run, reactions)
    for reaction in reactions:
        if reaction is Do.START_WORKFLOW:
            services.workflows.start_train(run.run_id, run.passes)
        elif isinstance(reaction, RecordCrash):
            state_machine_arn = services.settings.train_state_machine_arn
            name = train_name(run.run_id, run.passes)
            _record_crash(services, state_machine_arn, name, reaction)
    return bool(reactions) or is_due


def _has_card(services: Services, run: Run) -> bool:
    return services.deliveries.load(of_run(run.run_id)).card_ts is not None


def _help_cluster(services: Services, cluster: Cluster) -> bool:
    if look_at_approval(services, cluster) or _release_leases(services, cluster):
        return True
    # Whoever wrote it last may have crashed before it notified the runs that wait for it, or set
    # its clock; a clock may be lost, or late.
    stood = not cluster.is_going_away
    cluster = look_at_clock(services, cluster)
    if stood and cluster.is_going_away:
        follow_up(services, cluster)  # its teardown need not wait for the next reaper
        return True
    notify_waiting_runs(services, cluster)
    set_clock(services, cluster)
    cluster_id = cluster.cluster_id
    reactions = cluster_reactions.decide(
        cluster, LookedAfter(services.now(), held=is_held(services, cluster))
    )
    if Do.ASK_WORKFLOW in reactions:
        status = services.workflows.cluster_status(cluster_id, pass_number=cluster.passes)
        reactions = cluster_reactions.decide(cluster, WorkflowFound(services.now(), status))
    for reaction in reactions:
        if reaction is Do.START_TEARDOWN:
            start_teardown(services, cluster_id)
        elif reaction is Do.START_WORKFLOW:
            start_pass(services, cluster)
        elif isinstance(reaction, RecordCrash):
            state_machine_arn = services.settings.cluster_state_machine_arn
            name = pass_name(cluster_id, cluster.passes)
            _record_crash(services, state_machine_arn, name, reaction)
    _warn_of_room(services, cluster)
    return bool(reactions)


def _warn_of_room(services: Services, cluster: Cluster) -> None:
    """Warn, once a day, of too little room on the file system that a cluster has of its own.

    Also while nobody trains, and of programs that do not ask for it with their checkpoints.
    """
    own = [
        each.resource_id
        for each in cluster.resources.values()
        if each.kind is ResourceKind.FILE_SYSTEM and each.resource_id and each.deleted_at is None
    ]
    if not own or cluster.phase is not ClusterPhase.READY:
        return
    size, now = cluster.spec.file_system.storage_gib, services.now()
    free = services.file_system_room.free_gib(own[-1])
    if free is None or free >= LOW * size:
        return
    stamp = services.cluster_stamp(cluster.cluster_id, "room", now.date(), at=now)
    low = RoomLow(**stamp, free_gib=free, size_gib=size)
    services.cluster_states.record(cluster.cluster_id, [low])


def _release_leases(services: Services, cluster: Cluster) -> bool:
    """Release nodes and queue places of runs that have ended; say whether any had some.

    A run's job goes before its nodes do, as at the end of its own workflow.
    """
    runs, unreadable = services.runs.load_each(cluster.waiting_runs)
    for run_id, why in unreadable.items():
        if cluster.study_until is not None and not any(services.runs.rare_events(run_id)):
            if services.now() - cluster.requested_at >= GRACE:  # it was never written
                follow_up(services, run_left(services, cluster, run_id))
            continue
        report = partial(_report_unreadable, services, cluster, run_id, why)
        _is_helped("run_id", run_id, report)
    ended = [
        run for run in runs if Do.RELEASE_LEASE in decide(run, LeaseFound(services.now()), POLICY)
    ]
    for run in ended:
        if _is_out(services, run):
            release_lease(services, run.run_id)
    return bool(ended)


def _report_unreadable(services: Services, cluster: Cluster, run_id: RunId, why: str) -> bool:
    """Let people know, once, that a lease stays because its run cannot be read."""
    cluster_id = cluster.cluster_id
    set_aside(
        services,
        function="reaper",
        what=f"run {run_id}, which keeps its nodes of cluster {cluster_id}",
        reason=f"{why}; repair the item, or end the cluster: its file system stays then",
        payload={"cluster_id": cluster_id, "unreadable_run_id": run_id},
    )
    return False


def _is_out(services: Services, run: Run) -> bool:
    """Say whether nothing of the run is left in its cluster, or what is left is not waited for."""
    try:
        return release_run(services, run.run_id)["ready"]
    except PermanentError as exc:
        logger.warning("run not removed", extra={"run_id": run.run_id, "error": str(exc)})
        return True


def _record_crash(
    services: Services, state_machine_arn: str, name: str, crash: RecordCrash
) -> None:
    record_dead_execution(
        services,
        state_machine_arn=state_machine_arn,
        execution_name=name,
        status=crash.status,
        cause="found by the reaper",
    )
