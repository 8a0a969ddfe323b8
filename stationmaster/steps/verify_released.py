"""Looks for everything that carries the cluster's tag, and deletes what a dying workflow left."""

from __future__ import annotations

from datetime import datetime, timedelta

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import LeftBehind, StepTimedOut, Unreadable
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.exit_from_existing import release_in_existing
from stationmaster.steps.parts.leftovers import find_left, raise_if_held, release_left
from stationmaster.steps.parts.records import check_teardown, resources_deleted


def verify_released(services: Services, cluster_id: ClusterId) -> StepResult:
    """Look once; ready when nothing is left or can appear; else request its deletion again.

    A creation that was on its way while the run failed can land after its deletion was done: this
    is the net under that race. It looks once more when every function that may have asked for a
    creation has ended.

    Raises:
        ResultsHeld: results of a run are not saved yet, so what is left has to stay.
        LeftBehind: something is still there when the teardown's time is over.
    """
    cluster = services.cluster_states.load(cluster_id)
    raise_if_held(services, cluster)
    quiet_at = _quiet_at(services, cluster)
    is_quiet = quiet_at is None or services.now() >= quiet_at
    left = find_left(services, cluster_id)
    if not left and not is_quiet:
        return NOT_READY
    if not left:
        resources_deleted(services, cluster, *ResourceKind)
        return READY
    release_left(services, cluster_id, left)
    if cluster.spec.eks_name:
        release_in_existing(services, cluster)
    try:
        check_teardown(services, cluster, f"still there: {', '.join(map(str, left))}")
    except StepTimedOut as exc:
        raise LeftBehind(str(exc)) from exc
    return NOT_READY


def _quiet_at(services: Services, cluster: Cluster) -> datetime | None:
    """Return from when on nothing can appear any more; None where nothing is on its way.

    Objects of Kubernetes are not recorded one by one. They go with their EKS cluster; in an
    existing one, those outside the namespace stay.
    """
    grace = timedelta(seconds=services.settings.creation_grace_s)
    fenced_at = cluster.entered(ClusterPhase.DRAINING)
    if cluster.spec.eks_name and fenced_at is not None and _was_cut_off(services, cluster):
        return fenced_at + grace
    return cluster.quiet_at(grace)


def _was_cut_off(services: Services, cluster: Cluster) -> bool:
    """Say whether a workflow may have been killed while a function of it applied objects."""
    if cluster.entered(ClusterPhase.READY) is None:
        return True
    try:
        runs = [services.runs.find(run_id) for run_id in cluster.leases]
    except Unreadable:
        return True
    return any(run is None or run.phase is RunPhase.FAILED for run in runs)
