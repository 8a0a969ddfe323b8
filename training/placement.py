"""Which dimension of each weight FSDP shards, and over which ranks.

It knows the shapes of weights and meshes, not modules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_common import (
    FSDPMeshInfo,
    HSDPMeshInfo,
    ShardPlacementResult,
)
from torch.distributed.tensor import DTensor, Shard

from training.mesh import EXPERT, EXPERT_SHARD, REPLICATE, SHARD, dimensions

Placement = Shard | ShardPlacementResult | None


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
