"""Llama, Mistral and Mixtral by their shape, with an attention that keeps the GPU busy.

`build_model` gives shapes without memory. Import costs seconds: transformers' modules are imported
for the one family that is built.

Shape legend: B sequences, T tokens, H heads, C head size.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import AttentionInterface, PreTrainedModel
from transformers.models.auto.configuration_auto import AutoConfig

from stationmaster.domain.catalogue.models import LanguageModel

_ATTENTION: Final = "stationmaster_causal"


def _settings(shape: LanguageModel) -> dict[str, Any]:
    """Return what the configurations of all three families have in common."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if shape.rope_scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": shape.rope_scaling.factor,
            "low_freq_factor": shape.rope_scaling.low_freq_factor,
            "high_freq_factor": shape.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": shape.rope_scaling.original_context_length,
        }
    return {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.ffn_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_parameters": rope,
        "tie_word_embeddings": shape.tied_embeddings,
        "attn_implementation": _ATTENTION,
        "use_cache": False,
    }


def build_model(shape: LanguageModel) -> PreTrainedModel:
    """Build a Llama, Mistral or Mixtral of this shape on the meta device.

    Names and mathematics of parameters are those of transformers, so published weights fit.
    """
    settings = _settings(shape)
    if shape.family in ("mistral", "mixtral"):
        settings["sliding_window"] = None
    with torch.device("meta"):
        if shape.family != "mixtral":
            from transformers.models.auto.modeling_auto import AutoModelForCausalLM

            config = AutoConfig.for_model(shape.family, **settings)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
            return model
        from training.models.mixtral import build_routed_mixtral

        return build_routed_mixtral(
            AutoConfig.for_model(
                "mixtral",
                **settings,
                num_local_experts=shape.experts,
                num_experts_per_tok=shape.experts_per_token,
                router_aux_loss_coef=shape.router_aux_loss,
                # One product for all experts, on CPUs and GPUs alike. The other way, a loop over
                # experts, waits for the GPU and adds up in no fixed order there.
                experts_implementation="grouped_mm",
            )
        )


def attend(
    module: nn.Module,
    q_BHTC: Tensor,
    k_BHTC: Tensor,
    v_BHTC: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Attend causally, by the fastest kernel that torch has for the device.

    transformers' own entry to the same kernels first compares the positions of every batch with a
    packed layout, which makes the CPU wait for the GPU once a forward pass; here a mask says it.
    """
    if attention_mask is None:
        mixed_BHTC = functional.scaled_dot_product_attention(
            q_BHTC, k_BHTC, v_BHTC, is_causal=True, scale=scaling, enable_gqa=True
        )
    else:
        # No kernel that takes a mask takes fewer heads of keys: torch would fall back to one that
        # holds T x T numbers for every head.
        repeats = q_BHTC.shape[1] // k_BHTC.shape[1]
        mixed_BHTC = functional.scaled_dot_product_attention(
            q_BHTC,
            k_BHTC.repeat_interleave(repeats, dim=1),
            v_BHTC.repeat_interleave(repeats, dim=1),
            attn_mask=attention_mask,
            scale=scaling,
        )
    return mixed_BHTC.transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, attend)
