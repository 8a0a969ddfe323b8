"""A run gets its cluster: an attempt begins, asks for nodes, and waits until they are ready."""

from __future__ import annotations

from stationmaster.cluster_upkeep import begin_pass, set_clock, settle_nodes
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import (
    ClusterRequested,
    LeaseRequested,
    Requester,
)
from stationmaster.domain.cluster.fitting import why_unfit
from stationmaster.domain.cluster.keeping import awaits_window, has_old_checks
from stationmaster.domain.cluster.spec import ClusterSpec, spec_for
from stationmaster.domain.durations import moment
from stationmaster.domain.errors import ClusterFailed, IllegalTransition, RunStopped
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.registry import placed
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import Queued
from stationmaster.domain.run.aggregate import Run, Wait
from stationmaster.domain.run.attempts import Attempt, first_assignment
from stationmaster.domain.run.events import AttemptStarted
from stationmaster.services import Services
from stationmaster.steps.keep_clock import look_at_clock
from stationmaster.steps.parts.records import change_phases, mirror_phase
from stationmaster.steps.parts.stops import raise_if_stopped, wanted_run
from stationmaster.steps.release_lease import release_lease
from stationmaster.waiting import settle_cluster_wait


def acquire_cluster(services: Services, run_id: RunId, *, task_token: str) -> None:
    """Keep the token, and ask for nodes of the run's cluster; who makes them ready resolves it.

    The cluster is the one that the request names, or one that is made for the run and whose
    workflow is started. A run whose nodes are not free joins the queue. A cluster whose checks are
    older than a day and that only this run uses is checked again first; one whose nodes went
    because nobody used them gets them back. Before a capacity block has begun nothing is made of
    its cluster: the cluster's clock starts the workflow then.

    The token is written before the cluster is read, and whoever changes the cluster writes that
    before it reads the tokens: one of the two always sees the other.

    Raises:
        ClusterFailed: the run cannot use the cluster that it names; says why. Nothing is made.
        RunStopped: someone asked to stop, or the run has ended meanwhile.
    """
    services.runs.save_task_token(run_id, Wait.CLUSTER, task_token)
    run = wanted_run(services, run_id)
    attempt = _begin_attempt(services, run)
    cluster = _ask_for_nodes(services, run, attempt)
    if cluster.spec.window is not None:
        look_at_clock(services, cluster)  # what was due before this moment
        set_clock(services, cluster)
    # Whoever ended the run before this was written has not seen it; nobody else releases it.
    run = services.runs.load(run_id)
    try:
        raise_if_stopped(run)
    except RunStopped:
        release_lease(services, run_id)
        raise
    if cluster.run_id == run_id and not awaits_window(cluster, services.now()):
        services.workflows.start_cluster(cluster.cluster_id)
    cluster = _check_again(services, cluster, run_id)
    _show_wait(services, run, cluster)
    settle_cluster_wait(services, cluster, run_id, task_token)


def _begin_attempt(services: Services, run: Run) -> Attempt:
    """Begin the run's first attempt, on the cluster that it names, or one with the run's id."""
    if run.attempt is None:
        event = AttemptStarted(
            **services.run_stamp(run.run_id, "attempt.started", 1),
            **dict(first_assignment(run.run_id, run.request)),
        )
        run = services.runs.record(run.run_id, [event])
    assert run.attempt is not None
    return run.attempt


def _ask_for_nodes(services: Services, run: Run, attempt: Attempt) -> Cluster:
    """Return the attempt's cluster once the run has a lease of it or is in its queue."""
    cluster_id = attempt.cluster_id
    cluster = services.cluster_states.find(cluster_id)
    if cluster is not None and run.run_id in cluster.waiting_runs:
        return cluster
    needed = _needed(run, attempt)
    wanted = LeaseRequested(
        **services.cluster_stamp(cluster_id, "lease.requested", attempt.attempt_id),
        run_id=run.run_id,
        nodes=needed.nodes,
        min_nodes=run.request.min_nodes,
        keep_s=run.request.keep_s,
        alone=run.request.alone,
    )
    if cluster is None and run.request.cluster_id is None:
        cluster, _ = services.cluster_states.create(_own_cluster(services, run, needed), wanted)
        return cluster
    if cluster is None:
        raise ClusterFailed(
            f"cluster {cluster_id}, on which the run was to train, is not known any more"
        )
    if run.request.cluster_id is not None and (why := why_unfit(cluster, needed)):
        raise ClusterFailed(why)
    return services.cluster_states.record(cluster_id, [wanted])


def _check_again(services: Services, cluster: Cluster, run_id: RunId) -> Cluster:
    """Reconcile a cluster without its nodes, or with old checks unless other runs train on it."""
    cluster = settle_nodes(services, cluster)
    if not has_old_checks(cluster, run_id, services.now()):
        return cluster
    try:
        return begin_pass(services, cluster, nodes=cluster.spec.nodes)
    except IllegalTransition:
        return services.cluster_states.load(cluster.cluster_id)  # somebody else has begun one


def _needed(run: Run, attempt: Attempt) -> ClusterSpec:
    placement = attempt.placement
    recipe = run.request.resolved
    spec = spec_for(
        recipe,
        nodes=placement.nodes,
        instance_type=placement.instance_type,
        min_nodes=run.request.min_nodes,
    )
    return placed(spec, run.request)


def _own_cluster(services: Services, run: Run, needed: ClusterSpec) -> ClusterRequested:
    """Request a cluster for this run; with `keep=` it stays, with a card in the channel."""
    cluster_id, request = first_assignment(run.run_id, run.request).cluster_id, run.request
    requester = Requester(
        team_id=request.team_id, channel_id=request.channel_id, user_id=request.user_id
    )
    return ClusterRequested(
        **services.cluster_stamp(cluster_id, "requested"),
        spec=needed,
        run_id=run.run_id,
        requester=requester if request.keep_s > 0 else None,
        is_full=request.is_full,
        measures_nccl=request.measures_nccl,
    )


def _show_wait(services: Services, run: Run, cluster: Cluster) -> None:
    """Show what the run waits for: its turn, or what is done to the cluster."""
    window = cluster.spec.window
    if window is not None and awaits_window(cluster, services.now()):
        reservation = cluster.spec.reservation
        block = reservation.reservation_id if reservation is not None else ""
        why = f"capacity block {block} starts at {moment(window.starts_at)}, nothing is made before"
        change_phases(services, run, decide(run, Queued(why), POLICY))
        return
    if all(waiting.run_id != run.run_id for waiting in cluster.queue):
        mirror_phase(services, cluster)
        return
    try:
        change_phases(services, run, decide(run, Queued(), POLICY))
    except IllegalTransition:
        return  # it got its nodes in this moment, and shows what its cluster does
