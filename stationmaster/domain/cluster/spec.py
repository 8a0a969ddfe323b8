"""What a cluster is made of, and what a recipe needs of one. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from pydantic import Field

from stationmaster.domain.catalogue.instances import InstanceType, get_instance
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.names import CLAIM_PREFIX
from stationmaster.domain.planning.cost import file_system_price, shape_price
from stationmaster.domain.planning.requirements import num_useful_efa, uses_efa

# Source: EC2 user guide, "Capacity Blocks for ML": when instances are terminated.
_TAKEN_BACK_BEFORE: Final = timedelta(minutes=30)
# People need so long to see that a run is about to be stopped.
_WARN_BEFORE: Final = timedelta(minutes=15)
# Least time from the end of a run to that of its nodes; clocks ring within a minute.
LEAVE_S: Final = 600


class CapacityType(StrEnum):
    """How EC2 is asked for training nodes, in the words of EKS."""

    ON_DEMAND = "ON_DEMAND"
    SPOT = "SPOT"
    CAPACITY_BLOCK = "CAPACITY_BLOCK"


class FileSystemSpec(Frozen):
    """A file system of FSx for Lustre or behind a claim: its size and its throughput."""

    storage_gib: int
    mbps_per_tib: int
    existing_id: str = ""
    """The id of a file system that somebody else made: used, never changed, deleted or paid for. ""
    for one that is made for the cluster and goes with it. `pvc:NAMESPACE/NAME` is a claim of the
    existing cluster; size and throughput are assumed then."""

    @property
    def claim(self) -> str:
        """Namespace and name of the claim, with a slash; "" for a file system of FSx."""
        is_claim = self.existing_id.startswith(CLAIM_PREFIX)
        return self.existing_id.removeprefix(CLAIM_PREFIX) if is_claim else ""

    @property
    def price_per_hour_usd(self) -> float:
        """USD an hour that it adds to the cluster's bill."""
        if self.existing_id:
            return 0.0
        return file_system_price(self.storage_gib, self.mbps_per_tib)


class Window(Frozen):
    """The time of a capacity block, in UTC."""

    starts_at: datetime
    ends_at: datetime
    leave_s: int = LEAVE_S
    """The seconds that its last user needs to write a checkpoint and end."""

    @property
    def taken_back_at(self) -> datetime:
        """When AWS begins to end its instances and starts no more."""
        return self.ends_at - _TAKEN_BACK_BEFORE

    @property
    def leave_at(self) -> datetime:
        """The moment at which its last user is stopped."""
        return self.taken_back_at - timedelta(seconds=self.leave_s)

    @property
    def warn_at(self) -> datetime:
        """The moment at which its users are warned of that."""
        return self.leave_at - _WARN_BEFORE


class TeamQueue(Frozen):
    """A LocalQueue of Kueue in the namespace of a team, which the run's objects then share."""

    namespace: str
    name: str
    cluster_queue: str

    def is_called(self, queue: str) -> bool:
        """Say whether `queue=` may mean it: by its own name, or that of its ClusterQueue."""
        return queue in (self.name, self.cluster_queue)


class Reservation(Frozen):
    """A capacity reservation of EC2 that training nodes are taken from: used, never changed."""

    reservation_id: str
    zone: str
    placement_group: str = ""
    """The cluster placement group that it was made in; "" for none."""
    window: Window | None = None
    """The time of a capacity block, which is paid for in advance; None for other reservations."""


class ClusterSpec(Frozen):
    """Training nodes of one type and number, what they must offer, and a file system.

    Its plugins and checks follow from it: see `stationmaster.plugins` and `stationmaster.checks`.
    """

    instance_type: str
    nodes: int = Field(ge=1)
    min_nodes: int | None = None
    """While it is made: the least of `nodes` that is enough where AWS has no more. None once
    settled.
    """
    file_system: FileSystemSpec
    eks_name: str = ""
    """The existing EKS cluster that it uses; "" where the product makes one. Nothing of it is made,
    changed, deleted or billed."""
    hyperpod_vcpus: int | None = None
    """The CPUs of each training node, once these are known to be SageMaker HyperPod's."""
    queue: TeamQueue | None = None
    """The queue in whose namespace it is, found when it was made; None in one of its own."""
    reservation: Reservation | None = None
    """The reservation of its training nodes, or None."""
    is_spot: bool = False
    """Whether they are spot instances."""
    num_gpus: int = Field(ge=0)
    """GPUs that each training node must offer; 0 for none."""
    num_efa: int = Field(ge=0)
    """EFA interfaces that each training node must offer; 0 for none."""

    @property
    def namespace(self) -> str:
        """The namespace of others that it is in; "" where it has one of its own."""
        return self.queue.namespace if self.queue is not None else ""

    @property
    def place(self) -> str:
        """The existing EKS cluster, and after a slash the namespace of others there, if any."""
        return f"{self.eks_name}/{self.namespace}" if self.queue is not None else self.eks_name

    @property
    def least_nodes(self) -> int:
        """The number of training nodes below which it is of no use."""
        return self.nodes if self.min_nodes is None else self.min_nodes

    @property
    def instance(self) -> InstanceType:
        """The catalogue's entry of the training nodes' type; its price is 0 in a capacity block."""
        instance = get_instance(self.instance_type)
        if self.hyperpod_vcpus is not None:
            instance = instance.on_hyperpod(self.hyperpod_vcpus)
        return instance.prepaid if self.window is not None else instance

    @property
    def window(self) -> Window | None:
        """The time in which its training nodes can be there; None for no limit."""
        return self.reservation.window if self.reservation is not None else None

    @property
    def capacity_type(self) -> CapacityType:
        """How EC2 is asked for its training nodes."""
        if self.window is not None:
            return CapacityType.CAPACITY_BLOCK
        return CapacityType.SPOT if self.is_spot else CapacityType.ON_DEMAND

    @property
    def price_per_hour_usd(self) -> float:
        """USD an hour of all of it, without an existing EKS cluster; spot counts as on demand, its
        maximum.

        Raises:
            UnknownInstance: the catalogue has no price for its training nodes.
        """
        if self.eks_name:
            return 0.0
        return shape_price(
            self.instance,
            nodes=self.nodes,
            file_system_usd=self.file_system.price_per_hour_usd,
        )


def spec_for(
    recipe: Recipe, *, nodes: int, instance_type: str, min_nodes: int | None = None
) -> ClusterSpec:
    """Describe the cluster that a run of `recipe` needs for itself."""
    instance = get_instance(instance_type)
    return ClusterSpec(
        instance_type=instance_type,
        nodes=nodes,
        min_nodes=min_nodes,
        file_system=FileSystemSpec(
            storage_gib=recipe.file_system_gib,
            mbps_per_tib=recipe.file_system_mbps_per_tib,
            existing_id=recipe.file_system_id,
        ),
        num_gpus=instance.num_gpus if recipe.needs_gpu else 0,
        num_efa=instance.num_efa if uses_efa(recipe, instance) else 0,
    )


def with_file_system(recipe: Recipe, file_system: FileSystemSpec) -> Recipe:
    """Return the recipe with this file system in place of its own; a claim is as large as that."""
    if file_system.claim:
        return recipe.model_copy(update={"file_system_id": file_system.existing_id})
    return recipe.model_copy(
        update={
            "file_system_gib": file_system.storage_gib,
            "file_system_mbps_per_tib": file_system.mbps_per_tib,
            "file_system_id": file_system.existing_id,
        }
    )


def spec_for_any(
    instance: InstanceType,
    *,
    nodes: int,
    file_system_gib: int,
    mbps_per_tib: int | None = None,
    existing: FileSystemSpec | None = None,
) -> ClusterSpec:
    """Describe a cluster for any recipe: it offers all that its machines have for training.

    `file_system_gib` and `mbps_per_tib` are those of a new file system; `existing` replaces it.
    """
    return ClusterSpec(
        instance_type=instance.name,
        nodes=nodes,
        file_system=existing
        or FileSystemSpec(
            storage_gib=file_system_gib,
            mbps_per_tib=mbps_per_tib or (250 if instance.num_gpus else 125),
        ),
        num_gpus=instance.num_gpus,
        num_efa=num_useful_efa(instance),
    )
