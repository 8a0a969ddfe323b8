"""Models of the Hugging Face hub as recipes: from a repository's config.json to hf:ORG/MODEL.

Pure: what the hub says comes in as an argument. Called by `stationmaster.hub`, which asks, by the
catalogue, and by the trainer, which compares published weights with the model it builds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from stationmaster.domain.catalogue.models import LanguageModel, RopeScaling
from stationmaster.domain.errors import BadParameter

HUB_PREFIX: Final = "hf:"

# ORG/MODEL, and the few old repositories without an owner. Source: huggingface_hub's
# validate_repo_id: letters, digits and -_., at most 96 characters a part.
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)

# The names that architectures give to one thing, the commonest first. Source: the configuration
# classes of transformers (Llama, GPT-2, GPT-Neo, GPT-NeoX, OPT, MPT, Bloom, Falcon, Qwen, Gemma).
_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN: Final = ("hidden_size", "n_embd", "d_model")
_HEADS: Final = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads")
_FFN: Final = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
_CONTEXT: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
_NORM_EPSILON: Final = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")
# What a configuration that does not say so means. Source: the same classes' defaults.
_TIED_BY_DEFAULT: Final = {
    "bloom", "codegen", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode",
    "gpt_neo", "mpt", "openai-gpt", "opt", "starcoder2", "xglm",
}  # fmt: skip
_DEFAULT_CONTEXT: Final = 2048


def repository_of(recipe_name: str) -> str:
    """ORG/MODEL of a recipe's name hf:ORG/MODEL.

    Raises:
        BadParameter: it is not the name of a repository.
    """
    repository = recipe_name.removeprefix(HUB_PREFIX)
    if not is_repository(repository):
        raise BadParameter(
            f'recipe "{recipe_name[:120]}": expected {HUB_PREFIX}ORG/MODEL as on the Hugging Face '
            f"hub, e.g. {HUB_PREFIX}Qwen/Qwen2.5-0.5B"
        )
    return repository


def is_repository(text: str) -> bool:
    """Whether a text can be the name of a repository of the hub."""
    return bool(_REPOSITORY.fullmatch(text)) and ".." not in text and "--" not in text


def language_model_from_config(
    repository: str, config: Mapping[str, Any], *, num_parameters: int | None = None
) -> LanguageModel:
    """Read a published config.json, whatever its architecture calls things.

    `num_parameters` is the repository's own count; without one the closed form of a Llama stands
    in, which the plan alone uses.

    Raises:
        BadParameter: not a causal language model, quantised, or without a shape.
    """
    _check_trainable(repository, config)
    layers = _whole(repository, config, _LAYERS, what="number of layers")
    hidden = _whole(repository, config, _HIDDEN, what="hidden size")
    heads = _whole(repository, config, _HEADS, what="number of attention heads")
    experts = int(_first(config, _EXPERTS) or 0)
    ffn = _first(config, ("moe_intermediate_size",)) if experts else None
    rope = config.get("rope_parameters") or {}
    head_dim = _first(config, ("head_dim",))
    model = LanguageModel(
        family="hub",
        repository=repository,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=int(_first(config, _KV_HEADS) or (1 if config.get("multi_query") else heads)),
        own_head_dim=int(head_dim) if head_dim and head_dim != hidden // heads else None,
        ffn_size=int(ffn or _first(config, _FFN) or 4 * hidden),
        vocab_size=_whole(repository, config, ("vocab_size",), what="vocabulary size"),
        context_length=int(_first(config, _CONTEXT) or _DEFAULT_CONTEXT),
        rope_theta=float(
            _first(config, ("rope_theta", "rotary_emb_base")) or rope.get("rope_theta") or 10_000.0
        ),
        rope_scaling=_rope_scaling(config.get("rope_scaling") or rope),
        norm_epsilon=float(_first(config, _NORM_EPSILON) or 1e-5),
        tied_embeddings=bool(
            config.get("tie_word_embeddings", config.get("model_type") in _TIED_BY_DEFAULT)
        ),
        experts=experts,
        experts_per_token=int(_first(config, ("num_experts_per_tok",)) or 0) if experts else 0,
    )
    return model.model_copy(update={"published_parameters": _trained(model, num_parameters)})


def _trained(model: LanguageModel, stored: int | None) -> int | None:
    """Of the numbers that a repository stores, those that are trained.

    Some repositories (Qwen3-0.6B) store the head beside the embedding that it is tied to: then the
    count is nearer to the closed form with both.
    """
    if stored is None or not model.tied_embeddings:
        return stored
    embedding = model.vocab_size * model.hidden_size
    twice = abs(stored - model.num_parameters - embedding) < abs(stored - model.num_parameters)
    return stored - embedding if twice else stored


def _check_trainable(repository: str, config: Mapping[str, Any]) -> None:
    kind = config.get("model_type", "unknown")
    architectures = [str(name) for name in config.get("architectures") or []]
    causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    if not causal or config.get("is_encoder_decoder"):
        named = ", ".join(architectures) or f"model type {kind}, no architecture"
        raise BadParameter(
            f"{repository} is not a causal language model (its config.json says {named}); expected "
            "an architecture that ends in ForCausalLM"
        )
    quantisation = config.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method", "unknown method")
        raise BadParameter(
            f"{repository} holds quantised weights ({method}), which cannot be trained; use the "
            "repository of the original weights"
        )


def _rope_scaling(values: Mapping[str, Any]) -> RopeScaling | None:
    if values.get("rope_type", values.get("type")) != "llama3":
        return None
    return RopeScaling(
        factor=float(values["factor"]),
        low_freq_factor=float(values.get("low_freq_factor", 1.0)),
        high_freq_factor=float(values.get("high_freq_factor", 4.0)),
        original_context_length=int(values.get("original_max_position_embeddings", 8192)),
    )


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _whole(repository: str, config: Mapping[str, Any], names: tuple[str, ...], *, what: str) -> int:
    value = _first(config, names)
    if not isinstance(value, int) or value < 1:
        raise BadParameter(
            f"{repository}: config.json states no {what} (looked for {', '.join(names)}), got "
            f"{value!r}; expected a decoder-only language model"
        )
    return value
