"""The last step of every path of a run: it needs its cluster no longer."""

from __future__ import annotations

from stationmaster.cluster_upkeep import follow_up
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import WorkEnds
from stationmaster.domain.reactions.workflow import Do
from stationmaster.services import Services
from stationmaster.steps.parts.records import mirror_phase, run_left


def release_lease(services: Services, run_id: RunId) -> None:
    """Release the lease of the run's newest attempt, or take the run out of its cluster's queue.

    The runs that get its nodes are told, and a cluster that drains is put on the bus; repeating it
    does no harm. A run whose results are not saved keeps its lease, and with it its file system.
    """
    run = services.runs.load(run_id)
    if Do.RELEASE_LEASE not in decide(run, WorkEnds(), POLICY):
        return
    cluster_id = run.cluster_id or run.request.cluster_id  # there, a study keeps it a place
    cluster = services.cluster_states.find(cluster_id) if cluster_id is not None else None
    if cluster is None:
        return  # the run ended before it came to a cluster
    cluster = run_left(services, cluster, run_id)
    mirror_phase(services, cluster)
    follow_up(services, cluster)
