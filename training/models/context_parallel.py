"""Context parallelism: ranks that share the tokens of each sequence, and attend to all of them.

Called by `training.sharding` for the model and by the language task for its batches. A sequence is
cut into 2 N chunks, of which rank i of N has chunk i and chunk 2 N - 1 - i: causal attention of an
early chunk is little work, of a late one much, so that every rank has the same. Everything but
attention is computed token by token. There, each rank gathers the keys and values of all ranks,
and attends from its own tokens; backward adds up their gradients and hands each rank its own.
Source: Llama 3 (arXiv 2407.21783, section 3.3.2), which chose this over rings because key and value
heads are few, and because any mask is easily applied. torch 2.13's own `context_parallel` is
experimental, and its rings run on GPUs only.

Shape legend: B sequences, T tokens of a sequence, t = T / N tokens of this rank, H heads of
queries, K heads of keys and values, C numbers of a head, N ranks, c = t / 2 tokens of a chunk.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_single_autograd
from transformers.modeling_utils import AttentionInterface, PreTrainedModel

from training.models.architectures import attend
from training.parallel import Ranks

_ATTENTION: Final = "stationmaster_context"


def share_sequences(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Let the model's attention see the tokens of all ranks of a group, in place.

    From then on the model is given `own_tokens` of each sequence, with their `position_ids` and, if
    documents are kept apart, a mask of shape (B, 1, t, T).
    """
    assert isinstance(model, PreTrainedModel)
    model.config._attn_implementation = _ATTENTION
    for module in model.modules():
        if hasattr(module, "num_key_value_groups"):  # every attention of transformers' decoders
            module.context_group = group


def own_tokens(length: int, ranks: Ranks) -> Tensor:
    """Return which tokens of a sequence this rank has, (t,): those of its two chunks, in order."""
    chunks = torch.arange(length).view(2 * ranks.context_parallel, -1)
    early = ranks.context_rank
    return torch.cat([chunks[early], chunks[-1 - early]])


def _attend_from_part(
    module: nn.Module,
    q_BHtC: Tensor,
    k_BKtC: Tensor,
    v_BKtC: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    **_unused: Any,
) -> tuple[Tensor, None]:
    group = module.context_group
    assert isinstance(group, dist.ProcessGroup)
    k_BKTC, v_BKTC = _gather(k_BKtC, v_BKtC, group)
    if attention_mask is not None:
        return attend(module, q_BHtC, k_BKTC, v_BKTC, attention_mask, scaling=scaling)
    rank, size, num_tokens = group.rank(), group.size(), q_BHtC.shape[2] // 2
    mixed = []
    for q_BHcC, chunk in zip(q_BHtC.split(num_tokens, 2), (rank, 2 * size - 1 - rank), strict=True):
        end = (chunk + 1) * num_tokens
        seen = (k_BKTC[:, :, :end], v_BKTC[:, :, :end])
        mixed.append(_attend_from_last(module, q_BHcC, *seen, scaling=scaling))
    return torch.cat(mixed, dim=1), None


def _attend_from_last(
    module: nn.Module, q_BHcC: Tensor, k_BKSC: Tensor, v_BKSC: Tensor, *, scaling: float
) -> Tensor:
    """Attend causally from the last c of S tokens to all S; (B, c, H, C).

    The flash kernel of GPUs takes fewer queries than keys, and then lets the last query see all.
    scaled_dot_product_attention offers that only through torch's CausalBias, which calls the same
    kernel, and which cannot be made while selective checkpointing watches. Elsewhere a mask says
    it. Source: torch.nn.attention.bias of torch 2.13.
    """
    if q_BHcC.is_cuda and q_BHcC.dtype == torch.bfloat16:
        mixed_BHcC: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
            q_BHcC, k_BKSC, v_BKSC, 0.0, is_causal=True, scale=scaling
        )[0]
        return mixed_BHcC.transpose(1, 2)
    tokens, seen = q_BHcC.shape[2], k_BKSC.shape[2]
    mask_cS = torch.ones(tokens, seen, dtype=torch.bool, device=q_BHcC.device).tril(seen - tokens)
    return attend(module, q_BHcC, k_BKSC, v_BKSC, mask_cS, scaling=scaling)[0]


def _gather(k_BKtC: Tensor, v_BKtC: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Gather keys and values of all ranks, in the order of their tokens; (B, K, T, C) each."""
    own_2BKtC = torch.stack([k_BKtC, v_BKtC])
    gathered = all_gather_single_autograd(own_2BKtC.unsqueeze(0), gather_dim=0, group=group)
    by_chunk_N2BK2cC = gathered.unflatten(4, (2, -1))
    early, late = by_chunk_N2BK2cC.unbind(4)
    ordered_MBKcC = torch.cat([early, late.flip(0)])  # M = 2 N chunks
    k_BKTC, v_BKTC = ordered_MBKcC.movedim(0, 3).flatten(3, 4)
    return k_BKTC, v_BKTC


AttentionInterface.register(_ATTENTION, _attend_from_part)
