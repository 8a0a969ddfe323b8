"""Expert parallelism of Mixtral: each block's experts shared out over a few neighbouring ranks.

Called by `training.sharding`, before FSDP. Every rank computes attention and the router for its own
samples. The rows of its tokens travel to the ranks of their experts, one row for each choice of the
router, and the results back: two exchanges in a block's forward pass, two in its backward. Weights
keep their names and shapes. The ranks are those that read different samples, on a second mesh, so
data, loss and gradient norm do not change. Source: torchtitan's expert parallelism without padding
of rows.

Shape legend: N tokens of this rank, H hidden size, E experts, K experts a token, S rows that
leave, R rows that arrive, G ranks that share the experts, P = E / G experts of each.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers.integrations.moe import _grouped_linear
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from stationmaster.domain.errors import BadParameter


def share_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of a mesh its experts of every block, in place; on the meta device.

    Args:
        model: transformers' Mixtral.
        mesh: of one dimension. Its size divides the number of experts.

    Raises:
        BadParameter: the model has no such experts.
    """
    found = [module for module in model.modules() if isinstance(module, MixtralExperts)]
    if not found:
        raise BadParameter(
            f"expert_parallel={mesh.size()} shares out the experts of Mixtral, and "
            f"{type(model).__name__} has none; leave expert_parallel out"
        )
    for experts in found:
        for name, weight in list(experts.named_parameters(recurse=False)):
            own = distribute_tensor(weight, mesh, [Shard(0)], src_data_rank=None)
            experts.register_parameter(name, nn.Parameter(own))
        experts.forward = partial(_mix, experts, mesh.get_group())


def _mix(
    experts: MixtralExperts,
    group: dist.ProcessGroup,
    tokens_NH: Tensor,
    experts_NK: Tensor,
    weights_NK: Tensor,
) -> Tensor:
    """Weight and add up what the experts make of each token: (N, H).

    It replaces `MixtralExperts.forward`. It waits for the device once, to know how many rows go
    where: as many as the router says, so that no token is dropped.

    Each rank sends one more row to each of its own experts, whose result nobody reads. On GPUs,
    compiled products fail without any row, and on Blackwell an expert without rows gets random
    gradients. Source: pytorch/pytorch, pull request 192497 and issue 172439.
    """
    num_ranks, num_tokens, num_choices = group.size(), *experts_NK.shape
    every_expert = torch.arange(experts.num_experts, device=tokens_NH.device)
    own = every_expert.unflatten(0, (num_ranks, -1))[group.rank()]
    expert_S = torch.cat([experts_NK.flatten(), own])
    order_S = expert_S.argsort(stable=True)
    leaving_GP = (expert_S.unsqueeze(1) == every_expert).sum(dim=0).unflatten(0, (num_ranks, -1))
    arriving_GP = all_to_all_single(leaving_GP, None, None, group)
    leaving, arriving = torch.stack([leaving_GP, arriving_GP]).sum(dim=-1).tolist()

    rows_SH = tokens_NH[(order_S // num_choices).clamp(max=num_tokens - 1)]
    rows_RH = all_to_all_single(rows_SH, arriving, leaving, group)
    # They come rank by rank, each rank's in the order of experts.
    expert_R = torch.arange(arriving_GP.numel(), device=tokens_NH.device).repeat_interleave(
        arriving_GP.flatten(), output_size=sum(arriving)
    ) % len(own)
    by_expert_R = expert_R.argsort(stable=True)
    ends_P = arriving_GP.sum(dim=0).cumsum(dim=0, dtype=torch.int32)
    made_RH = _compute(experts, rows_RH[by_expert_R], ends_P)[by_expert_R.argsort()]
    made_SH = all_to_all_single(made_RH, leaving, arriving, group)

    made_NKH = made_SH[order_S.argsort()[: -len(own)]].unflatten(0, experts_NK.shape)
    return (made_NKH * weights_NK.unsqueeze(-1)).sum(dim=1).to(tokens_NH.dtype)


def _compute(experts: MixtralExperts, rows_RH: Tensor, ends_P: Tensor) -> Tensor:
    """Compute this rank's experts, each on its own rows, which come one expert after the other.

    The products are those of transformers without expert parallelism.
    """
    inner = experts._apply_gate(_grouped_linear(rows_RH, _own(experts.gate_up_proj), ends_P))
    return _grouped_linear(inner, _own(experts.down_proj), ends_P)


def _own(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
