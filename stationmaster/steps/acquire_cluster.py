"""A run gets its cluster: an attempt begins, leases the cluster, and waits until it is ready."""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterRequested, LeaseGranted, cluster_event_id
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.errors import RunStopped
from stationmaster.domain.ids import RunId
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.aggregate import Run, Wait
from stationmaster.domain.run.attempts import Attempt, first_assignment
from stationmaster.domain.run.events import AttemptStarted, run_event_id
from stationmaster.services import Services
from stationmaster.steps.recording import mirror_phase
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.stopping import raise_if_stopped
from stationmaster.waiting import settle_cluster_wait


def acquire_cluster(services: Services, run_id: RunId, *, task_token: str) -> None:
    """Keep the token, lease the run's cluster and start its workflow, which resolves the token.

    The token is written before the cluster is read, and the cluster's workflow writes the phase
    before it reads the tokens: one of the two always sees the other.

    Raises:
        RunStopped: someone asked to stop, or the run has ended meanwhile.
    """
    services.runs.save_task_token(run_id, Wait.CLUSTER, task_token)
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    attempt = _begin_attempt(services, run)
    cluster = _lease(services, run, attempt)
    # Whoever ended the run before the lease was written has not seen it; nobody else releases it.
    run = services.runs.load(run_id)
    try:
        raise_if_stopped(run)
    except RunStopped:
        release_lease(services, run_id)
        raise
    services.workflows.start_cluster(cluster.cluster_id)
    mirror_phase(services, cluster)
    settle_cluster_wait(services, cluster, run_id, task_token)


def _begin_attempt(services: Services, run: Run) -> Attempt:
    """The run's first attempt, on a cluster of its own, which has the run's id."""
    if run.attempt is None:
        event = AttemptStarted(
            event_id=run_event_id(run.run_id, "attempt.started", 1),
            run_id=run.run_id,
            at=services.now(),
            **dict(first_assignment(run.run_id, run.request)),
        )
        run = services.runs.record(run.run_id, [event])
    assert run.attempt is not None
    return run.attempt


def _lease(services: Services, run: Run, attempt: Attempt) -> Cluster:
    """The attempt's cluster with a lease of the run, made if it is not there."""
    cluster_id, placement = attempt.cluster_id, attempt.placement
    known = services.cluster_states.find(cluster_id)
    if known is not None:
        return known
    recipe = get_recipe(run.request.recipe, run.request.model).with_overrides(run.request.overrides)
    requested = ClusterRequested(
        event_id=cluster_event_id(cluster_id, "requested"),
        cluster_id=cluster_id,
        at=services.now(),
        spec=spec_for(recipe, nodes=placement.nodes, instance_type=placement.instance_type),
        run_id=run.run_id,
    )
    lease = LeaseGranted(
        event_id=cluster_event_id(cluster_id, "lease.granted", attempt.attempt_id),
        cluster_id=cluster_id,
        at=services.now(),
        run_id=run.run_id,
        nodes=placement.nodes,
    )
    cluster, _ = services.cluster_states.create(requested, lease)
    return cluster
