"""How the ranks are arranged: which of them share weights, copy them, or split a product.

Called by `training.sharding`. It knows ranks and the shapes of weights, not models. The dimensions,
outermost first:

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

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp._fully_shard._fsdp_common import (
    FSDPMeshInfo,
    HSDPMeshInfo,
    ShardPlacementResult,
)
from torch.distributed.tensor import DTensor, Shard

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

Placement = Shard | ShardPlacementResult | None


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


def placement_of(
    mesh: DeviceMesh, experts: DeviceMesh | None
) -> Callable[[nn.Parameter], Placement]:
    """Make the function that `fully_shard` calls for each parameter.

    Args:
        mesh: the ranks that shard and copy weights.
        experts: their arrangement for shared experts, of `training.mesh.build_expert_mesh`.
    """
    whole = partial(_of_whole, num_shards=mesh[SHARD].size())
    if experts is None:
        return whole
    num_shards, info = experts[EXPERT_SHARD].size(), _info(experts)

    def of_either(parameter: nn.Parameter) -> Placement:
        if not isinstance(parameter, DTensor) or dimensions(parameter.device_mesh) != (EXPERT,):
            return whole(parameter)
        # A rank's own experts, or where these do not suffice, rows of each.
        by_row = parameter.to_local().shape[0] % num_shards != 0
        return ShardPlacementResult(Shard(1 if by_row else 0), info)

    return of_either


def _of_whole(parameter: nn.Parameter, *, num_shards: int) -> Shard | None:
    """Shard rows; the inner dimension of experts' weights that do not divide among ranks.

    These are stacked as (experts, out, in): 8 experts over 32 ranks by rows would leave 24 ranks
    with nothing, and gather four times the bytes as padding. Source: torchtitan's experts.
    """
    if parameter.ndim == 3 and parameter.shape[0] % num_shards:
        return Shard(1) if parameter.shape[1] % num_shards == 0 else None
    return None


def _info(experts: DeviceMesh) -> FSDPMeshInfo:
    if REPLICATE in dimensions(experts):
        return HSDPMeshInfo(
            experts[REPLICATE, EXPERT_SHARD], shard_mesh_dim=1, replicate_mesh_dim=0
        )
    return FSDPMeshInfo(experts[EXPERT_SHARD], shard_mesh_dim=0)
