"""How the ranks are arranged: which of them share weights, copy them, or split a product.

Called by `training.sharding`. It knows ranks, not models. The dimensions, outermost first:

    replicate   parallelism=hybrid: one copy of the model for each place along it
    shard       FSDP: each rank has a part of every weight, and other samples or, with
                context_parallel, other tokens of the same ones: those ranks are next to each other
    tensor      tensor_parallel above 1: neighbours of one node, which compute the same samples,
                each with some of the attention heads and some columns of each product

With expert_parallel above 1, the weights of experts lie on the same ranks in another arrangement,
which takes the experts out of the dimension `shard` and adds no rank:

    replicate     as above
    expert_shard  FSDP: each rank has a part of the same experts
    expert        neighbours, which share the experts of each block
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stationmaster.domain.catalogue.training_config import (
    TrainingConfig,
    context_parallel_of,
    expert_parallel_of,
    tensor_parallel_of,
)
from stationmaster.domain.errors import BadParameter
from training.parallel import Ranks

REPLICATE: Final = "replicate"
SHARD: Final = "shard"
TENSOR: Final = "tensor"
EXPERT_SHARD: Final = "expert_shard"
EXPERT: Final = "expert"


def arranged(ranks: Ranks, training: TrainingConfig) -> Ranks:
    """Arrange the ranks as a recipe lets them share samples; all of them call this together."""
    split, parts = tensor_parallel_of(training), context_parallel_of(training)
    group = None
    if parts > 1:
        group, _groups = dist.new_subgroups_by_enumeration(
            [
                list(range(first, first + parts * split, split))
                for start in range(0, ranks.world_size, parts * split)
                for first in range(start, start + split)
            ]
        )
    return replace(ranks, tensor_parallel=split, context_parallel=parts, context_group=group)


def build_mesh(training: TrainingConfig, ranks: Ranks) -> DeviceMesh:
    """Put all ranks in one line to shard over; for hybrid, a row for each node's copy.

    With tensor_parallel each place is a group of neighbours, in a last dimension of their own.

    Raises:
        BadParameter: hybrid, and nodes run different numbers of processes.
    """
    sizes = {SHARD: ranks.world_size // ranks.tensor_parallel}
    if training.parallelism == "hybrid":
        _check_equal_nodes(ranks)
        shards = ranks.local_world_size // ranks.tensor_parallel
        sizes = {REPLICATE: sizes[SHARD] // shards, SHARD: shards}
    if ranks.tensor_parallel > 1:
        sizes[TENSOR] = ranks.tensor_parallel
    return init_device_mesh(ranks.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def build_expert_mesh(training: TrainingConfig, mesh: DeviceMesh) -> DeviceMesh:
    """Arrange the ranks of `build_mesh` for the weights of experts."""
    experts = expert_parallel_of(training)
    sizes = {EXPERT_SHARD: mesh[SHARD].size() // experts, EXPERT: experts}
    if REPLICATE in dimensions(mesh):
        sizes = {REPLICATE: mesh[REPLICATE].size()} | sizes
    return init_device_mesh(mesh.device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def without_tensor(mesh: DeviceMesh) -> DeviceMesh:
    """Return the part of a mesh that FSDP shards and copies over."""
    if TENSOR not in dimensions(mesh):
        return mesh
    data = tuple(name for name in dimensions(mesh) if name != TENSOR)
    return mesh[data]


def dimensions(mesh: DeviceMesh) -> tuple[str, ...]:
    """Return the names of a mesh's dimensions, outermost first."""
    return mesh.mesh_dim_names or ()


def _check_equal_nodes(ranks: Ranks) -> None:
    of_nodes: list[int | None] = [None] * ranks.world_size
    dist.all_gather_object(of_nodes, ranks.local_world_size)
    if len(set(of_nodes)) > 1 or ranks.world_size % ranks.local_world_size:
        raise BadParameter(
            f"parallelism=hybrid shards within a node and needs the same number of processes on "
            f"every node; {ranks.world_size} processes are on nodes of "
            f"{', '.join(str(size) for size in sorted(set(of_nodes), key=str))}; "
            "use equal nodes or parallelism=full"
        )
