"""The proof at start: which models of the hub it lets through, and what it says of the others."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import pytest
from hub_lone import NoData, lone_ranks, smoke_recipe
from transformers import AutoConfig

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.errors import BadParameter
from training.models import proof
from training.models.proof import prove

SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "olmo": {"clip_qkv": 8.0},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "phi3": {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + n / 48 for n in range(48)],
            "long_factor": [1.0 + n for n in range(48)],
        },
        "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131072,
    },
    "zamba": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 20,
    },
}


def recipe_of(kind: str, directory: Path, **keys: str) -> Recipe:
    """Of a repository with a family's default configuration, or nearly so, and no weights."""
    AutoConfig.for_model(kind, **SETTINGS.get(kind, {})).save_pretrained(directory)
    (directory / "model.safetensors").touch()
    recipe = smoke_recipe("llama2-7b", weights=str(directory), **keys)
    model = recipe.model.model_copy(update={"family": "hub", "repository": "a/b"})
    return recipe.model_copy(update={"name": "hf:a/b", "model": model})


def prove_here(recipe: Recipe, cache_dir: Path) -> None:
    prove(recipe, source=NoData(), ranks=lone_ranks(), cache_dir=cache_dir)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("llama", {"document_mask": "true", "activation_checkpointing": "full"}),
        # Hard to make small: factors of rotary embeddings, one for each two numbers of a head.
        ("phi3", {}),
        # Layers that share weights with the first of their kind.
        ("zamba", {}),
    ],
)
def test_a_family_that_is_trained_as_it_should_be_is_proven(
    kind: str, keys: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    prove_here(recipe_of(kind, tmp_path, **keys), tmp_path)

    assert "hf:a/b is proven by a small model in" in caplog.text


@pytest.mark.parametrize(
    ("kind", "keys", "sentence"),
    [
        # An in-place clamp on what selective checkpointing has kept: equal losses, other gradients.
        (
            "olmo",
            {"activation_checkpointing": "selective"},
            "gradients are others with activation_checkpointing=selective; use full or off",
        ),
        (
            "gpt_oss",
            {"activation_checkpointing": "selective"},
            "it fails with activation_checkpointing=selective; use full or off",
        ),
        # A convolution over what is before a token, whatever its position says.
        ("lfm2", {"document_mask": "true"}, "documents that share a sequence see each other"),
    ],
    ids=["olmo", "gpt_oss", "lfm2"],
)
def test_what_a_family_does_not_keep_is_refused(
    kind: str, keys: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(BadParameter, match=f"hf:a/b, tried as a small model .*: {sentence}"):
        prove_here(recipe_of(kind, tmp_path, **keys), tmp_path)


def test_weights_that_do_not_arrive_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.models.hub.load_weights", lambda *_arguments, **_keys: None)

    with pytest.raises(BadParameter, match="what is learned is not what transformers computes"):
        prove_here(recipe_of("llama", tmp_path), tmp_path)


def test_a_family_without_a_small_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "_MOST_PARAMETERS", 1000)

    with pytest.raises(BadParameter, match=r"transformers builds none that could be compared \("):
        prove_here(recipe_of("llama", tmp_path), tmp_path)
