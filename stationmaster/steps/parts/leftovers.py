"""What a cluster still has in the account, asked of AWS kind by kind, and what of it has to stay.

A teardown may not delete the only copy of what runs leave, nor what is needed to save it. Training
nodes go in any case. File system, system nodes and control plane stay until the results of every
run that still leases the cluster are saved, lost or given up. A run that cannot be read counts as
one that is not saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.errors import ResultsHeld
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import TRAINING_NODE_GROUP
from stationmaster.domain.resources import Left, ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services
from stationmaster.steps.parts.exit_from_existing import left_in_existing

# They go with their node group, which would replace what is taken from it.
_OF_NODE_GROUPS: Final = frozenset({ResourceKind.INSTANCE, ResourceKind.VOLUME})


def find_left(services: Services, cluster_id: ClusterId) -> list[Left]:
    """List what still exists of a cluster, in the order in which it is deleted."""
    cluster = services.cluster_states.find(cluster_id)
    inside = left_in_existing(services, cluster) if cluster is not None else []
    return [*inside, *left_in_account(services, cluster_id)]


def left_in_account(services: Services, cluster_id: ClusterId) -> list[Left]:
    """List those of the kinds that are found by their tags or by their cluster's name."""
    kinds = services.in_deletion_order().values()
    return [left for kind in kinds for left in kind.left(cluster_id)]


def release_left(services: Services, cluster_id: ClusterId, left: Sequence[Left]) -> None:
    """Request the deletion of what was found in the account; what is in use stays for now."""
    kinds = services.in_deletion_order()
    has_groups = any(each.kind is ResourceKind.NODE_GROUP for each in left)
    for each in left:
        kind = kinds.get(each.kind)  # some are in an existing EKS cluster
        if kind is None or (has_groups and each.kind in _OF_NODE_GROUPS):
            continue
        kind.release(cluster_id, each.id)


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
