"""A model's configuration made small: few layers, narrow, and otherwise as it is.

It works on the names that configurations use, whatever the architecture. What comes out of one way
may still be one that transformers cannot build, so there are several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from transformers import PretrainedConfig

VOCABULARY: Final = 128
_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_blocks")
_EXPERTS: Final = re.compile(r"(moe_)?num_(local_)?experts|n_routed_experts|zero_expert_num")
_CHOSEN: Final = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k",
    "top_k_experts",
)  # fmt: skip
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
_MOST_CHOSEN: Final = 2  # experts for a token
_MOST_LEFT_OUT: Final = 8
_LONG: Final = re.compile(r"sliding_window|attention_window|local_attention|chunk_size|block_size")
_SHARING: Final = "num_kv_shared_layers"  # the last ones read keys of layers before
_HEADS: Final = re.compile(r"(^|_)(heads|n_head|num_attention_heads_per_layer)$")
_OF_A_HEAD: Final = re.compile(r"head_?(dim|size)|(^|_)(d_head|dim_head)$|rotary")
_HEAD_WIDTHS: Final = ("head_dim", "attention_head_dim", "qk_rope_head_dim", "d_head")
_FACTORS: Final = ("short_factor", "long_factor")  # of rotary embeddings, one for each two numbers
_MOST_LAYERS: Final = 8
_FEWEST_HEADS: Final = 2  # where there are more than one: keys and values may be shared by some


@dataclass(frozen=True, slots=True)
class Way:
    """A way to make a configuration small."""

    of_a_kind: int = 1
    """Layers of each kind that are kept; some share weights with one of the same kind before."""
    narrows_heads: bool = True
    leaves_out_heads: bool = True


WAYS: Final = (
    Way(),
    Way(leaves_out_heads=False),
    Way(of_a_kind=2),
    Way(narrows_heads=False, leaves_out_heads=False),
)
"""The one that makes the smallest first."""


@dataclass(frozen=True, slots=True)
class _Divisors:
    """Powers of two."""

    head: int
    """Of the width of a head."""
    heads: int
    """Of their number."""


def tiny_config(config: PretrainedConfig, way: Way = WAYS[0]) -> PretrainedConfig:
    """Shrink an architecture to few and narrow layers."""
    from transformers import AutoConfig

    small = _small(config.to_dict(), way)
    kind = small.pop("model_type")
    return AutoConfig.for_model(kind, **small)


def _small(config: Mapping[str, Any], way: Way) -> dict[str, Any]:
    layers = _number(config, _LAYERS) or len(config.get("layers_block_type") or ())
    kept = _kept_layers(config, layers, way.of_a_kind)
    divisors = _divisors(config, way)
    small: dict[str, Any] = {}
    for name, value in config.items():
        if name in _LAYERS:
            small[name] = len(kept)
        elif name == _SHARING:
            small[name] = sum(n >= layers - (value or 0) for n in kept)
        elif (by_layer := _by_layer(name, value, layers)) is not None:
            picked = {new: by_layer[old] for new, old in enumerate(kept) if old in by_layer}
            if isinstance(value, dict):
                small[name] = {new: _scaled_all(one, divisors) for new, one in picked.items()}
            elif _INDICES.search(name):
                small[name] = list(picked)
            else:
                small[name] = [_scaled(name, one, divisors) for one in picked.values()]
        elif isinstance(value, dict) and "model_type" in value:
            small[name] = _small(value, way)
        elif name.startswith("vocab_size"):
            small[name] = VOCABULARY
        elif name.endswith("_token_id"):
            small[name] = [1] if isinstance(value, list) else None if value is None else 1
        elif _EXPERTS.fullmatch(name) and value:
            small[name] = _fewer_experts(config, value)
        else:
            small[name] = _scaled(name, value, divisors)
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


def _scaled_all(settings: Mapping[str, Any], divisors: _Divisors) -> dict[str, Any]:
    return {name: _scaled(name, value, divisors) for name, value in settings.items()}


def _scaled(name: str, value: Any, divisors: _Divisors) -> Any:
    if isinstance(value, float) and _THRESHOLD.search(name):
        return value / 100  # so that small activations reach it
    if isinstance(value, list) and name in _FACTORS:
        return value[:: divisors.head]
    if isinstance(value, dict) and name.startswith("rope"):
        return _scaled_all(value, divisors)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 1:
        return value
    if _LONG.search(name):
        return min(value, 16)
    if name in _CHOSEN:
        return min(value, _MOST_CHOSEN)
    if _HEADS.search(name):
        return value // divisors.heads if value % divisors.heads == 0 else value
    divisor = divisors.head if _OF_A_HEAD.search(name) else divisors.head * divisors.heads
    narrow, rest = divmod(value, divisor)
    # Kernels want rows of whole 16 bytes.
    is_width = _WIDTH.search(name) and not _NO_WIDTH.search(name)
    return narrow if is_width and not rest and (narrow < 16 or narrow % 4 == 0) else value


def _divisors(config: Mapping[str, Any], way: Way) -> _Divisors:
    """Choose those that leave a head wide enough for its parts, and a few heads."""
    hidden = _number(config, ("hidden_size", "n_embd", "d_model")) or 0
    heads = _number(config, ("num_attention_heads", "n_head", "num_heads", "n_heads")) or 1
    width = _number(config, _HEAD_WIDTHS) or hidden // heads
    head = number = 1
    while way.narrows_heads and width // (2 * head) >= 16 and width % (16 * head) == 0:
        head *= 2
    counts = {count for count in _head_counts(config) if count > 1}
    while way.leaves_out_heads and counts and number < _MOST_LEFT_OUT and all(
        count % (2 * number) == 0 and count // (2 * number) >= _FEWEST_HEADS for count in counts
    ):  # fmt: skip
        number *= 2
    return _Divisors(head, number)


def _head_counts(config: Mapping[str, Any]) -> Iterator[int]:
    for name, value in config.items():
        if _HEADS.search(name):
            yield from (n for n in (value if isinstance(value, list) else [value]) if n)


def _kept_layers(config: Mapping[str, Any], layers: int, of_a_kind: int) -> list[int]:
    """Choose so many layers of each kind at least, in their order."""
    settings = [_by_layer(name, value, layers) for name, value in config.items()]
    first_sharing = layers - (config.get(_SHARING) or 0)
    kinds = [
        (n >= first_sharing, *(str(one.get(n)) for one in settings if one)) for n in range(layers)
    ]
    seen = [kinds[:n].count(kind) for n, kind in enumerate(kinds)]
    kept = [n for n, times in enumerate(seen) if times < of_a_kind][:_MOST_LAYERS]
    if len(set(kinds)) > 1:
        return kept
    periods = [v for n, v in config.items() if _PERIOD.search(n) and isinstance(v, int)]
    return list(range(min(layers, _MOST_LAYERS, of_a_kind * max([2, *periods]))))


def _fewer_experts(config: Mapping[str, Any], experts: int) -> int:
    chosen = min(_number(config, _CHOSEN) or _MOST_CHOSEN, _MOST_CHOSEN)
    groups = _number(config, _GROUPS) or 1
    while experts % 2 == 0 and experts // 2 >= max(2 * chosen, 4 * groups):
        experts //= 2
    return experts


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((config[n] for n in names if isinstance(config.get(n), int)), None)
