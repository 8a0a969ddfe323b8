"""Mixtral whose blocks hand out their routers' logits, and the load-balancing loss made of them.

transformers collects these logits with hooks and a context variable, which neither torch.compile
nor activation checkpointing of a block can look through; here they are a block's second result.
Parameters have the names and the mathematics of transformers' own model.

Shape legend: B sequences, T tokens, L blocks, E experts, K experts a token.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import (
    MixtralDecoderLayer,
    MixtralForCausalLM,
    MixtralModel,
)

from training.parallel import sum_over_group


def build_routed_mixtral(config: MixtralConfig) -> MixtralForCausalLM:
    """Build transformers' model; its output has `router_logits`: L tensors (B x T, E)."""
    model = MixtralForCausalLM(config)
    model.model.__class__ = _RoutedDecoder
    for block in model.model.layers:
        block.__class__ = _RoutedBlock
    return model


class _RoutedDecoder(MixtralModel):
    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **_unused: Any,
    ) -> MoeModelOutputWithPast:
        hidden_BTD = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        rotary = self.rotary_emb(hidden_BTD, position_ids=position_ids)
        router_logits = []
        for block in self.layers:
            hidden_BTD, logits_NE = block(
                hidden_BTD, position_embeddings=rotary, attention_mask=attention_mask
            )
            router_logits.append(logits_NE)
        return MoeModelOutputWithPast(
            last_hidden_state=self.norm(hidden_BTD), router_logits=tuple(router_logits)
        )


class _RoutedBlock(MixtralDecoderLayer):
    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        attended_BTD, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            position_embeddings=position_embeddings,
            attention_mask=attention_mask,
        )
        residual_BTD = hidden_states + attended_BTD
        tokens_ND = self.post_attention_layernorm(residual_BTD).flatten(0, 1)
        logits_NE, weights_NK, experts_NK = self.mlp.gate(tokens_ND)
        mixed_ND = self.mlp.experts(tokens_ND, experts_NK, weights_NK)
        return residual_BTD + mixed_ND.view_as(residual_BTD), logits_NE


def balancing_loss(
    router_logits: tuple[Tensor, ...],
    *,
    num_sequences: int,
    experts_per_token: int,
    context_group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Measure how unevenly each sequence's tokens use the experts; (B,) float32.

    E times the sum over experts of (share of the sequence's assignments, of all blocks together)
    times (mean probability): K when all experts are used alike, up to E when one is. Only the
    probabilities carry a gradient.

    This is transformers' `load_balancing_loss_func` for a batch of one sequence. Over a whole batch
    that function mixes the sequences' shares, and its value changes with the way a batch is split
    into ranks and micro-batches; taken sequence by sequence it does not. Of a sequence that ranks
    share, each returns the addend of its own tokens: the probabilities are its own, the counts of
    all of them.

    Source: Switch Transformers (arxiv.org/abs/2101.03961), equations 4 to 6.
    """
    num_experts = router_logits[0].shape[-1]
    counts_BE = probabilities_BE = torch.zeros((), device=router_logits[0].device)
    num_assigned = 0
    for logits_NE in router_logits:
        p_BTE = functional.softmax(logits_NE, dim=-1, dtype=torch.float32).unflatten(
            0, (num_sequences, -1)
        )
        chosen_BTK = p_BTE.topk(experts_per_token, dim=-1).indices
        counts_BE = counts_BE + functional.one_hot(chosen_BTK, num_experts).sum(dim=(1, 2)).float()
        probabilities_BE = probabilities_BE + p_BTE.sum(dim=1)
        num_assigned += p_BTE.shape[1]
    if context_group is not None:
        counts_BE = sum_over_group(counts_BE, context_group)
        num_assigned *= context_group.size()
    return num_experts * (counts_BE * probabilities_BE).sum(dim=1) / num_assigned**2
