"""Which runs' results pods in a cluster reach: of runs that use it, their own and what they resume.

The account of a result has the AWS role for as long as such a run uses the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services
from stationmaster.steps.parts.removal import remove_results_account


def ensure_access(services: Services, run: Run, cluster_id: ClusterId, of: Iterable[RunId]) -> bool:
    """Let pods of the run reach these results; return whether that is new, and valid in seconds.

    What comes after the teardown has looked for the last time is taken back at once, as by
    `exit_from_existing`: associations in an existing EKS cluster do not go with it.
    """
    place = services.cluster_states.load(cluster_id).spec.place
    identities = services.pod_identities
    is_new = identities.ensure_results(cluster_id, place, of, run_id=run.run_id)
    if is_new and place:
        cluster = services.cluster_states.load(cluster_id)  # as it is by now
        if cluster.teardown is TeardownStatus.COMPLETED:
            identities.release_results(cluster_id, place)
    return is_new


def end_access(services: Services, cluster: Cluster, run_id: RunId) -> None:
    """Take the rights from the accounts that no other run on the cluster needs."""
    leases = cluster.leases.items()
    others = [other for other, lease in leases if lease.released_at is None and other != run_id]
    found, unreadable = services.runs.load_each(others)
    kept = {*unreadable, *(each for run in found for each in _needed(run))}
    gateway, spec = services.kubernetes(cluster.cluster_id), cluster.spec
    released = services.pod_identities.release_results(cluster.cluster_id, spec.place, but=kept)
    for name in released:
        remove_results_account(gateway, RunId(name))


def _needed(run: Run) -> set[RunId]:
    order = run.request.restoring_order(run.run_id)
    return {run.run_id, *(order.by_source() if order is not None else ())}
