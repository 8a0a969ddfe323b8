"""Models of the Hugging Face hub as recipes: from a repository's config.json to hf:ORG/MODEL.

Pure: what the hub says is an argument. Called by `stationmaster.hub`, which asks, by the catalogue,
and by the trainer, which compares published weights with the model that it builds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from stationmaster.domain.catalogue.models import MAX_PARAMETERS, LanguageModel
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
_WORDS: Final = {
    "layers": ("number of layers", _LAYERS),
    "heads": ("number of attention heads", _HEADS),
    "hidden_size": ("hidden size", _HIDDEN),
    "vocab_size": ("vocabulary size", ("vocab_size",)),
}
# What a configuration that does not say so means. Source: the same classes' defaults.
_TIED_BY_DEFAULT: Final = {
    "bloom", "codegen", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode",
    "gpt_neo", "mpt", "openai-gpt", "opt", "starcoder2", "xglm",
}  # fmt: skip
_DEFAULT_CONTEXT: Final = 2048
# Causal language models that attend without a fused kernel, holding a number for each pair of
# tokens and each head. Source: `_supports_sdpa` of transformers' classes; a test asks all of them.
UNFUSED: Final = frozenset({
    "big_bird", "bigbird_pegasus", "bloom", "codegen", "cpmant", "deepseek_v4", "falcon_mamba",
    "flint", "gemma2", "git", "got_ocr2", "gpt_neo", "gpt_neox_japanese", "gpt_oss", "gptj",
    "granite_swa", "granitemoe_swa", "hy_v4", "inkling2_text", "mamba", "mamba2", "megatron-bert",
    "mimo_v2_flash", "mpt", "mvp", "openai-gpt", "prophetnet", "reformer", "rembert", "roformer",
    "rwkv", "trocr", "vaultgemma", "xglm", "xlm", "xlnet", "xlstm",
})  # fmt: skip


def repository_of(recipe_name: str) -> str:
    """Return ORG/MODEL of a recipe's name hf:ORG/MODEL.

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
    """Say whether a text can be the name of a repository of the hub."""
    return bool(_REPOSITORY.fullmatch(text)) and ".." not in text and "--" not in text


def language_model_from_config(
    repository: str, config: Mapping[str, Any], *, num_parameters: int | None = None
) -> LanguageModel:
    """Read a published config.json, whatever names its architecture uses.

    `num_parameters` is the repository's own count; without one the plan uses the closed form of a
    Llama.

    Raises:
        BadParameter: not a causal language model, quantised, or without a shape that can be true.
    """
    _check_trainable(repository, config)
    try:
        model = LanguageModel(family="hub", repository=repository, **_shape(config))
    except ValidationError as exc:
        raise _not_usable(repository, exc) from exc
    usual = model.own_head_dim in (None, model.hidden_size // model.heads)
    published = {"published_parameters": _trained(model, num_parameters)}
    model = model.model_copy(update=published | ({"own_head_dim": None} if usual else {}))
    if not model.head_dim or model.num_parameters > MAX_PARAMETERS:
        raise BadParameter(
            f"{repository}: config.json describes {model.num_parameters:.3g} parameters and "
            f"{model.heads} heads of size {model.head_dim}; no such model can be trained"
        )
    return model


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the values of a model's fields as they are published, unchecked."""
    hidden, heads = _first(config, _HIDDEN), _first(config, _HEADS)
    layers = _first(config, _LAYERS)
    # Doge and Gemma 4 state how many experts they would have.
    has_experts = False not in (config.get("is_moe"), config.get("enable_moe_block"))
    experts = (_first(config, _EXPERTS) or 0) if has_experts else 0
    ffn = _first(config, ("moe_intermediate_size",)) if experts else None
    rope = _mapping(config.get("rope_parameters"))
    theta = _first(config, ("rope_theta", "rotary_emb_base")) or rope.get("rope_theta")
    tied = _first(config, ("tie_word_embeddings",))
    return {
        "layers": layers,
        "hidden_size": hidden,
        "heads": heads,
        "kv_heads": _first(config, _KV_HEADS) or (1 if config.get("multi_query") else heads),
        "own_head_dim": _first(config, ("head_dim",)) or None,
        "ffn_size": ffn or _inner_size(config, hidden),
        "vocab_size": config.get("vocab_size"),
        "context_length": _first(config, _CONTEXT) or _DEFAULT_CONTEXT,
        "rope_theta": theta or 10_000.0,
        "rope_scaling": _rope_scaling(_mapping(config.get("rope_scaling")) or rope),
        "norm_epsilon": _first(config, _NORM_EPSILON) or 1e-5,
        "tied_embeddings": str(config.get("model_type")) in _TIED_BY_DEFAULT
        if tied is None
        else tied,
        "experts": experts,
        "experts_per_token": _first(config, ("num_experts_per_tok", "top_k_experts")) or 0
        if experts
        else 0,
        "attention_layers": _attention_layers(config, layers),
        "fused_attention": str(config.get("model_type")) not in UNFUSED,
        "fp32_softmax": config.get("model_type") != "gpt_oss",
        "scan_bytes": _scan_bytes(config, hidden),
        "capped_logits": bool(config.get("final_logit_softcapping")),
        "lookup_size": _first(config, ("hidden_size_per_layer_input",)) or 0,
    }


def _inner_size(config: Mapping[str, Any], hidden: object) -> Any:
    """Return the inner size of the feed-forward part: of Gemma 3n's, one a layer, the largest.

    LFM2 states more than it builds, and by which rule.
    """
    size = _first(config, _FFN) or (4 * hidden if type(hidden) is int else None)
    if isinstance(size, list) and all(type(each) is int for each in size):
        size = max(size, default=None)
    multiple = config.get("block_multiple_of")
    if config.get("block_auto_adjust_ff_dim") and type(size) is type(multiple) is int:
        return -(-(2 * size // 3) // max(multiple, 1)) * max(multiple, 1)
    return size


def _attention_layers(config: Mapping[str, Any], layers: object) -> int | None:
    """Count the layers that attend to tokens and do not only fold them into a state; None for all.

    Source: the names in the configurations of Qwen3-Next, LFM2, Jamba, Bamba, Granite 4, Mamba 2.
    """
    kinds = _first(config, ("layer_types", "layers_block_type"))
    listed = _first(config, ("full_attn_idxs", "attn_layer_indices"))
    period = _first(config, ("attn_layer_period", "full_attention_interval"))
    count: int | None = None
    if isinstance(kinds, list):
        names = [str(kind) for kind in kinds]
        count = sum("attention" in name and "linear" not in name for name in names)
        count += names.count("hybrid")
    elif isinstance(listed, list):
        count = len(listed)
    elif type(layers) is type(period) is int and period > 0:
        count = layers // period
    elif "state_size" in config and "num_attention_heads" not in config:
        count = 0
    return None if count == layers else count


def _scan_bytes(config: Mapping[str, Any], hidden: object) -> int:
    """Add up what a layer of Mamba holds of a token, in fp32: the trainer's image has no mamba-ssm.

    Traced in transformers 5.23. Mamba 2 keeps 10 bytes for each head and position of its chunk, 23
    for each head and number of its state, and 58 for each inner channel. Mamba 1 keeps 14 for each
    inner channel and number of its state and 28 for each channel, and its backward needs 16 more
    for each number. On an H200 (with 5.17, traced as well) peaks were those of the trace to 1 %.
    """
    state = _first(config, ("state_size", "mamba_d_state", "ssm_state_size"))
    heads = _first(config, ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads"))
    chunk = _first(config, ("mamba_chunk_size", "chunk_size"))
    alone = () if "num_attention_heads" in config else ("intermediate_size",)
    inner = _first(config, ("mamba_d_ssm", *alone))
    expand = _first(config, ("mamba_expand", "expand")) or 2
    if inner is None and type(hidden) is type(expand) is int:
        inner = expand * hidden
    if type(state) is not int or type(inner) is not int:
        return 0
    if type(heads) is type(chunk) is int:
        return heads * (10 * chunk + 23 * state) + 58 * inner
    return inner * (30 * state + 28)


def _not_usable(repository: str, error: ValidationError) -> BadParameter:
    """Write one sentence about the first value that cannot be true of a model."""
    problem = error.errors(include_url=False, include_context=False)[0]
    field = str(problem["loc"][0])
    what, names = _WORDS.get(field, (field.replace("_", " "), ()))
    looked = f" (looked for {', '.join(names)})" if names else ""
    return BadParameter(
        f"{repository}: config.json states no {what} that a model can have{looked}, got "
        f"{problem['input']!r:.80}; expected a decoder-only language model"
    )


def _trained(model: LanguageModel, stored: int | None) -> int | None:
    """Return those of the numbers that a repository stores that are trained.

    Some repositories (Qwen3-0.6B) store the head beside the embedding that it is tied to: then the
    count is nearer to the closed form with both.
    """
    if stored is None or not model.tied_embeddings:
        return stored
    embedding = model.vocab_size * model.hidden_size
    twice = abs(stored - model.num_parameters - embedding) < abs(stored - model.num_parameters)
    return stored - embedding if twice and stored > embedding else stored


def _check_trainable(repository: str, config: Mapping[str, Any]) -> None:
    kind, named_there = config.get("model_type", "unknown"), config.get("architectures")
    architectures = [str(name) for name in named_there] if isinstance(named_there, list) else []
    causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    if not causal or config.get("is_encoder_decoder"):
        named = ", ".join(architectures)[:200] or f"model type {kind!s:.60}, no architecture"
        raise BadParameter(
            f"{repository} is not a causal language model (its config.json says {named}); expected "
            "an architecture that ends in ForCausalLM"
        )
    quantisation = config.get("quantization_config")
    if quantisation:
        method = str(_mapping(quantisation).get("quant_method", "unknown method"))[:60]
        raise BadParameter(
            f"{repository} holds quantised weights ({method}), which cannot be trained; use the "
            "repository of the original weights"
        )


def _rope_scaling(values: Mapping[str, Any]) -> dict[str, Any] | None:
    if values.get("rope_type", values.get("type")) != "llama3":
        return None
    names = {"original_max_position_embeddings": "original_context_length"}
    return {names.get(name, name): value for name, value in values.items()}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)
