"""What a teardown may not delete: the only copy of what runs leave, and what is needed to save it.

Training nodes go in any case. File system, system nodes and control plane stay until the results of
every run that still leases the cluster are saved, lost or given up.
"""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.errors import ResultsHeld
from stationmaster.domain.names import TRAINING_NODE_GROUP
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services


def unsaved_runs(services: Services, cluster: Cluster) -> list[Run]:
    """The runs whose results are on the cluster's file system and nowhere else."""
    runs = [services.runs.load(lease.run_id) for lease in cluster.open_leases]
    return [run for run in runs if run.has_unsaved_results]


def is_held(services: Services, cluster: Cluster) -> bool:
    """Whether another teardown would delete nothing until the results of a run are saved."""
    if cluster.teardown is not TeardownStatus.FAILED or not unsaved_runs(services, cluster):
        return False
    nodes = cluster.resource(ResourceKind.NODE_GROUP, TRAINING_NODE_GROUP)
    return nodes is None or nodes.status is ResourceStatus.DELETED


def raise_if_held(services: Services, cluster: Cluster) -> None:
    """Leave the cluster as it is while it has results that are not saved.

    Raises:
        ResultsHeld: names the run, why it is not saved and what stays.
    """
    for run in unsaved_runs(services, cluster):
        why = f"not saved: {run.unsaved_reason}" if run.unsaved_reason else "still being saved"
        raise ResultsHeld(
            f"the results of run {run.run_id} are {why}; file system, system nodes and control "
            "plane stay"
        )
