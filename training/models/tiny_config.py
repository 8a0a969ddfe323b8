"""A model's configuration made small: few layers, narrow, and otherwise as it is.

It works on the names that configurations use, whatever the architecture; what comes out may still
be one that transformers cannot build, which says nothing against the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from transformers import PretrainedConfig

VOCABULARY: Final = 128
_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_blocks")
_EXPERTS: Final = re.compile(r"(moe_)?num_(local_)?experts|n_routed_experts|zero_expert_num")
_CHOSEN: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
_GROUPS: Final = ("n_group", "num_expert_group")
# Sizes that are multiplied with one another keep their ratios when all are divided by one number.
_WIDTH: Final = re.compile(
    r"(^|_)(hidden|intermediate|embd|embedding|ffn|dim|rank|width|channels|dff|d_ssm|headdim)(_|$)"
    r"|^d_(model|head|inner|rel)$|(^|_)(d_head|head_size|time_step_rank)$|^n_inner$"
)
_NO_WIDTH: Final = re.compile(r"hidden_layers|kernel|_conv|multipl|hidden_act|_type|dropout")
_THRESHOLD: Final = re.compile(r"clip|clamp|swiglu_limit")
_PERIOD: Final = re.compile(r"period|interval|every_n|pattern|layer_group_size|sparse_step")
_INDICES: Final = re.compile(r"_idxs$|_indices$|layer_ids$|_only_layers$|^moe_layers$")
_LONG: Final = re.compile(r"sliding_window|attention_window|local_attention|chunk_size|block_size")
_SHARING: Final = "num_kv_shared_layers"  # the last ones read keys of layers before
_MOST_LAYERS: Final = 8


def tiny_config(config: PretrainedConfig) -> PretrainedConfig:
    """Shrink an architecture to few and narrow layers."""
    from transformers import AutoConfig

    small = _small(config.to_dict())
    kind = small.pop("model_type")
    return AutoConfig.for_model(kind, **small)


def _small(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = _number(config, _LAYERS) or 0
    kept = _kept_layers(config, layers)
    divisor = _divisor(config)
    small: dict[str, Any] = {}
    for name, value in config.items():
        if name in _LAYERS:
            small[name] = len(kept)
        elif name == _SHARING:
            small[name] = sum(n >= layers - (value or 0) for n in kept)
        elif (by_layer := _by_layer(name, value, layers)) is not None:
            picked = {new: by_layer[old] for new, old in enumerate(kept) if old in by_layer}
            if isinstance(value, dict):
                small[name] = {
                    new: {key: _scaled(key, each, divisor) for key, each in one.items()}
                    for new, one in picked.items()
                }
            elif _INDICES.search(name):
                small[name] = list(picked)
            else:
                small[name] = [_scaled(name, one, divisor) for one in picked.values()]
        elif isinstance(value, dict) and "model_type" in value:
            small[name] = _small(value)
        elif name.startswith("vocab_size"):
            small[name] = VOCABULARY
        elif name.endswith("_token_id"):
            small[name] = [1] if isinstance(value, list) else None if value is None else 1
        elif _EXPERTS.fullmatch(name) and value:
            small[name] = _fewer_experts(config, value)
        else:
            small[name] = _scaled(name, value, divisor)
    return small


def _by_layer(name: str, value: Any, layers: int) -> dict[int, Any] | None:
    """Return a setting by the layers that it is for; None of what is for the whole model."""
    if isinstance(value, list) and _INDICES.search(name):
        return dict.fromkeys(value, True)
    if isinstance(value, list) and len(value) == layers:
        return dict(enumerate(value))
    if isinstance(value, dict) and value and all(str(n).isdigit() for n in value):
        return {int(n): one for n, one in value.items() if isinstance(one, dict)} or None
    return None


def _scaled(name: str, value: Any, divisor: int) -> Any:
    if isinstance(value, float) and _THRESHOLD.search(name):
        return value / 100  # so that small activations reach it
    if not isinstance(value, int) or isinstance(value, bool) or value <= 1:
        return value
    if _LONG.search(name):
        return min(value, 16)
    narrow, rest = divmod(value, divisor)
    # Kernels want rows of whole 16 bytes.
    is_width = _WIDTH.search(name) and not _NO_WIDTH.search(name)
    return narrow if is_width and not rest and (narrow < 16 or narrow % 4 == 0) else value


def _divisor(config: Mapping[str, Any]) -> int:
    """Choose a power of two that leaves a head wide enough for what is done to its parts."""
    hidden = _number(config, ("hidden_size", "n_embd", "d_model")) or 0
    heads = _number(config, ("num_attention_heads", "n_head", "num_heads", "n_heads")) or 1
    head = _number(config, ("head_dim", "qk_rope_head_dim", "d_head")) or hidden // heads
    divisor = 1
    while head // (2 * divisor) >= 16 and head % (16 * divisor) == 0:
        divisor *= 2
    return divisor


def _kept_layers(config: Mapping[str, Any], layers: int) -> list[int]:
    """Choose one layer of each kind at least, in their order."""
    settings = [_by_layer(name, value, layers) for name, value in config.items()]
    first_sharing = layers - (config.get(_SHARING) or 0)
    kinds = [
        (n >= first_sharing, *(str(one.get(n)) for one in settings if one)) for n in range(layers)
    ]
    kept = sorted({kinds.index(kind) for kind in kinds})[:_MOST_LAYERS]
    if len(kept) > 1:
        return kept
    periods = [v for n, v in config.items() if _PERIOD.search(n) and isinstance(v, int)]
    return list(range(min(layers, _MOST_LAYERS, max([2, *periods]))))


def _fewer_experts(config: Mapping[str, Any], experts: int) -> int:
    chosen, groups = _number(config, _CHOSEN) or 1, _number(config, _GROUPS) or 1
    while experts % 2 == 0 and experts // 2 >= max(2 * chosen, 4 * groups):
        experts //= 2
    return experts


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((config[n] for n in names if isinstance(config.get(n), int)), None)
