"""Every family of causal language models that transformers has, small, from its own defaults."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import pytest
import torch
from hub_lone import NoData, lone_ranks, smoke_recipe
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from stationmaster.domain.errors import BadParameter
from training.models.initialisation import initialise, unfilled
from training.models.language import LanguageTask
from training.models.tiny_config import tiny_config

CPU: Final = torch.device("cpu")
MOST_PARAMETERS: Final = 20_000_000


def tiny_model(kind: str) -> PreTrainedModel:
    """Of a family's default configuration, without memory."""
    config = tiny_config(CONFIG_MAPPING[kind]())
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def tiny_models() -> dict[str, PreTrainedModel]:
    """Those that can be made small, of some 160: not every family has defaults that work."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
            if not str(name).endswith("ForCausalLM"):
                continue
            try:
                model = tiny_model(kind)
            except Exception:  # whatever transformers' own code raises for its own defaults
                continue
            if sum(parameter.numel() for parameter in model.parameters()) < MOST_PARAMETERS:
                found[kind] = model
    return found


def test_no_family_is_left_with_memory_that_no_rule_filled() -> None:
    models = tiny_models()
    left = {}

    for kind, model in models.items():
        initialise(model, seed=1, device=CPU)
        left[kind] = unfilled(model)

    assert len(models) > 100
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
