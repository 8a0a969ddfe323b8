"""Every family of causal language models that transformers has, small, from its own defaults."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import torch
from hub_lone import NoData, lone_ranks, smoke_recipe
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from stationmaster.domain.catalogue.hub import language_model_from_config
from stationmaster.domain.errors import BadParameter, StationmasterError
from training.export import TRANSFORMERS_ERRORS
from training.models import proof
from training.models.initialisation import initialise, unfilled
from training.models.language import LanguageTask
from training.models.tiny_config import WAYS, Way, tiny_config

CPU: Final = torch.device("cpu")


def tiny_model(kind: str, way: Way = WAYS[0]) -> PreTrainedModel:
    """Of a family's default configuration, without memory."""
    return built(tiny_config(CONFIG_MAPPING[kind](), way))


def built(config: PretrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


@cache
def tiny_models() -> tuple[dict[str, PreTrainedModel], set[str]]:
    """Families of causal language models that can be made small, of some 160, and the others."""
    found, others = {}, set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
            if not str(name).endswith("ForCausalLM"):
                continue
            others.add(kind)
            for way in WAYS:
                with suppress(*TRANSFORMERS_ERRORS):
                    model = tiny_model(kind, way)
                    if size_of(model) < proof._MOST_PARAMETERS:
                        found[kind] = model
                        others.remove(kind)
                        break
    return found, others


def size_of(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def is_trained(kind: str) -> bool:
    """Whether a repository with a family's default configuration is accepted, and can be built."""
    with suppress(StationmasterError, *TRANSFORMERS_ERRORS):
        config = CONFIG_MAPPING[kind]()
        named = {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]}
        language_model_from_config("a/b", config.to_dict() | named)
        built(config)
        return True
    return False


def test_no_family_that_can_be_trained_is_too_large_to_be_tried() -> None:
    _, others = tiny_models()

    assert {kind for kind in others if is_trained(kind)} == set()


def test_no_family_is_left_with_memory_that_no_rule_filled() -> None:
    found, _ = tiny_models()
    models = {kind: model for kind, model in found.items() if size_of(model) < 30_000_000}
    left = {}

    for kind, model in models.items():
        initialise(model, seed=1, device=CPU)
        left[kind] = unfilled(model)

    assert len(models) > 130
    # transformers has no rule for the parameters of its activation; published weights have them.
    assert {kind for kind, names in left.items() if names} == {"apertus"}


def test_a_parents_rule_fills_its_children() -> None:
    falcon, qwen = tiny_model("falcon_h1"), tiny_model("qwen3_next")

    for model in (falcon, qwen):
        initialise(model, seed=1, device=CPU)

    width = falcon.config.initializer_range
    multipliers = falcon.get_buffer("model.layers.1.mamba.mup_vector")
    assert torch.equal(multipliers, torch.ones_like(multipliers))  # all of them are 1 by default
    router = qwen.get_parameter("model.layers.1.mlp.gate.weight")
    assert float(router.detach().std()) == pytest.approx(width, rel=0.1)


def test_what_has_no_first_value_is_refused_by_name(tmp_path: Path) -> None:
    task = LanguageTask(smoke_recipe("llama2-7b"), NoData(), ranks=lone_ranks(), cache_dir=tmp_path)
    task.model = tiny_model("apertus")

    with pytest.raises(BadParameter, match="ApertusForCausalLM have no first value"):
        task.initialise(device=CPU)
