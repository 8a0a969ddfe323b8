"""What a teardown may not delete: the only copy of what runs leave, and what is needed to save it.

Training nodes go in any case. File system, system nodes and control plane stay until the results of
every run that still leases the cluster are saved, lost or given up. A run that cannot be read
counts as one that is not saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.errors import ResultsHeld
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import TRAINING_NODE_GROUP
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services


@dataclass(frozen=True)
class Holders:
    """The runs that may have something on the cluster's file system and nowhere else."""

    unsaved: list[Run]
    unreadable: dict[RunId, str]
    """Why the table does not say whether the results of these are saved."""

    @property
    def run_ids(self) -> list[RunId]:
        return [*(run.run_id for run in self.unsaved), *self.unreadable]

    @property
    def gave_up(self) -> bool:
        """Whether nobody saves the results of one of them at present."""
        return bool(self.unreadable) or any(run.unsaved_reason for run in self.unsaved)


def holders(services: Services, cluster: Cluster) -> Holders:
    """List the runs for which the file system has to stay."""
    leasing = [lease.run_id for lease in cluster.open_leases]
    runs, unreadable = services.runs.load_each(leasing)
    return Holders([run for run in runs if run.has_unsaved_results], unreadable)


def is_held(services: Services, cluster: Cluster) -> bool:
    """Say whether another teardown would delete nothing until the results of a run are saved."""
    if cluster.teardown is not TeardownStatus.FAILED or not holders(services, cluster).run_ids:
        return False
    nodes = cluster.resource(ResourceKind.NODE_GROUP, TRAINING_NODE_GROUP)
    return nodes is None or nodes.status is ResourceStatus.DELETED


def raise_if_held(services: Services, cluster: Cluster) -> None:
    """Leave the cluster as it is while it has results that are not saved.

    Raises:
        ResultsHeld: names the run, why it is not saved and what stays.
    """
    held = holders(services, cluster)
    for run_id, why in held.unreadable.items():
        raise ResultsHeld(
            f"{why}, so the results of run {run_id} may not be saved; file system, system nodes "
            "and control plane stay until that item of the table is repaired"
        )
    for run in held.unsaved:
        why = f"not saved: {run.unsaved_reason}" if run.unsaved_reason else "still being saved"
        raise ResultsHeld(
            f"the results of run {run.run_id} are {why}; file system, system nodes and control "
            "plane stay"
        )
