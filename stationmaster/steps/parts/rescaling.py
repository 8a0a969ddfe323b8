"""Gives a run on a range of nodes more of them, or takes some back, while it trains.

The recorder looks at the relay's heartbeats and after each checkpoint. More nodes are leased before
the run's job is ended; fewer only once its pods are gone (`steps/parts/next_attempt.py`).
"""

from __future__ import annotations

import logging

from stationmaster.cluster_upkeep import follow_up
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import LeaseResized
from stationmaster.domain.errors import IllegalTransition, PermanentError, TransientError
from stationmaster.domain.reactions import cluster as cluster_reactions
from stationmaster.domain.reactions.leasing import RunTrains, ShareNodes
from stationmaster.domain.reactions.rescaling import Rescale, why_fixed
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RescaleBegan
from stationmaster.services import Services

logger = logging.getLogger(__name__)


def look_at_size(services: Services, run: Run) -> Run:
    """Begin to change the run's nodes where its cluster asks for it; nothing is raised."""
    if why_fixed(run) or run.cluster_id is None or run.rescale is not None or run.is_ending:
        return run
    try:
        return _look(services, run, services.cluster_states.load(run.cluster_id))
    except (IllegalTransition, TransientError, PermanentError) as exc:
        # Somebody else got the nodes, or it has ended, in this moment.
        logger.warning("size not changed", extra={"run_id": run.run_id, "error": str(exc)})
        return run


def _look(services: Services, run: Run, cluster: Cluster) -> Run:
    for share in cluster_reactions.decide(cluster, RunTrains(run.run_id)):
        if not isinstance(share, ShareNodes):
            continue
        if share.nodes == run.placement.nodes:
            # More were leased by a recorder that was killed before it wrote what for.
            resize_lease(services, cluster, run, share.nodes)
        for reaction in decide(run, share, POLICY):
            if isinstance(reaction, Rescale):
                return _begin(services, run, cluster, reaction)
    return run


def _begin(services: Services, run: Run, cluster: Cluster, change: Rescale) -> Run:
    gateway = services.kubernetes(cluster.cluster_id)
    job = gateway.job(run.job)
    if job is None or any(condition.ends for condition in job.conditions):
        return run
    if change.nodes > run.placement.nodes:
        resize_lease(services, cluster, run, change.nodes)
    event = RescaleBegan(
        **services.run_stamp(run.run_id, "rescale", run.attempt_number),
        nodes=change.nodes,
        job_uid=job.uid,
        why=change.why,
    )
    return services.runs.record(run.run_id, [event])


def resize_lease(services: Services, cluster: Cluster, run: Run, nodes: int) -> Cluster:
    """Give the run's lease another size, unless it has that; others get what it gives back.

    Raises:
        IllegalTransition: so many are not free, or it has no lease.
    """
    lease = cluster.leases.get(run.run_id)
    if lease is not None and lease.nodes == nodes:
        return cluster
    what = ("lease.resized", run.run_id, run.attempt_number, nodes)
    stamp = services.cluster_stamp(cluster.cluster_id, *what)
    event = LeaseResized(**stamp, run_id=run.run_id, nodes=nodes)
    cluster = services.cluster_states.record(cluster.cluster_id, [event])
    follow_up(services, cluster)
    return cluster
