"""hf:ORG/MODEL: published configurations to shapes, shapes to recipes, words to requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.catalogue.hub import language_model_from_config, repository_of
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.errors import BadParameter, NotPossibleNow, UnknownRecipe, UserError
from stationmaster.domain.ids import RunId
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.rendering.job_spec import job_spec
from stationmaster.rendering.pytorch_job import render_pytorch_job
from tests.support.factories import make_request
from tests.support.plans import make_plan

# Excerpts of published config.json files.
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "n_inner": None,
    "layer_norm_epsilon": 1e-05,
    "vocab_size": 50257,
}
NEOX = QWEN | {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}
del NEOX["num_key_value_heads"]
FALCON = {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "hidden_size": 4544,
    "multi_query": True,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "vocab_size": 65024,
}
MIXTRAL = QWEN | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
QWEN_PARAMETERS = 7_615_616_512


def qwen(repository: str = "Qwen/Qwen2.5-7B") -> LanguageModel:
    return language_model_from_config(repository, QWEN, num_parameters=QWEN_PARAMETERS)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (QWEN, {"layers": 28, "heads": 28, "kv_heads": 4, "ffn_size": 18944, "rope_theta": 1e6}),
        (GPT2, {"layers": 12, "hidden_size": 768, "kv_heads": 12, "context_length": 1024}),
        (GPT2, {"ffn_size": 3072, "tied_embeddings": True}),
        (NEOX, {"kv_heads": 28, "tied_embeddings": False}),
        (FALCON, {"kv_heads": 1, "ffn_size": 4 * 4544, "tied_embeddings": True}),
        (MIXTRAL, {"experts": 8, "experts_per_token": 2, "kv_heads": 4}),
    ],
)
def test_a_published_configuration_is_read_whatever_it_calls_things(
    config: dict[str, Any], expected: dict[str, Any]
) -> None:
    model = language_model_from_config("org/model", config)

    assert {name: getattr(model, name) for name in expected} == expected
    assert (model.family, model.repository) == ("hub", "org/model")


def test_a_published_llama_has_the_shape_of_the_catalogue() -> None:
    found = language_model_from_config("meta-llama/Llama-3.2-1B", LLAMA3)
    ours = get_recipe("llama3.2-1b").model

    assert found.model_copy(update={"family": "llama"}) == ours
    assert found.num_parameters == 1_235_814_400


def test_a_configuration_saved_by_transformers_5_is_read_too() -> None:
    config = LLAMA3 | {"rope_parameters": LLAMA3["rope_scaling"] | {"rope_theta": 5e5}}
    del config["rope_scaling"], config["rope_theta"]

    assert language_model_from_config("a/b", config) == language_model_from_config("a/b", LLAMA3)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *QWEN,
                *LLAMA3,
                "num_experts",
                "head_dim",
                "rope_parameters",
                "layer_types",
                "attn_layer_period",
                "hidden_size_per_layer_input",
                "block_multiple_of",
                "block_auto_adjust_ff_dim",
                "full_attn_idxs",
                "is_moe",
            ]
        ),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=9)
        | st.lists(st.integers(), max_size=2)
        | st.dictionaries(st.sampled_from([*LLAMA3["rope_scaling"]]), st.floats(), max_size=3),
        max_size=4,
    ),
    st.none() | st.integers(1, 10**14),
)
def test_any_configuration_is_a_model_with_a_plan_or_one_sentence(
    changes: dict[str, Any], counted: int | None
) -> None:
    try:
        model = language_model_from_config("org/model", LLAMA3 | changes, num_parameters=counted)
        plan = make_plan("hf:org/model", model=model)
    except UserError as exc:
        said = str(exc)
    else:
        said = ""
        assert 0 <= plan.estimated_cost_usd < 1e12
        assert LanguageModel.model_validate_json(model.model_dump_json()) == model
    assert "\n" not in said


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (QWEN | {"architectures": ["BertForMaskedLM"]}, "says BertForMaskedLM.*ForCausalLM"),
        ({"model_type": "timm"}, "model type timm, no architecture"),
        (QWEN | {"is_encoder_decoder": True}, "is not a causal language model"),
        (QWEN | {"quantization_config": {"quant_method": "gptq"}}, r"quantised weights \(gptq\)"),
        (QWEN | {"num_hidden_layers": None}, "states no number of layers"),
        (QWEN | {"vocab_size": "many"}, "states no vocabulary size.*'many'"),
        (QWEN | {"hidden_size": float("inf")}, "no hidden size that a model can have .*got inf"),
        (QWEN | {"rope_theta": float("nan")}, "no rope theta .*got nan"),
        (QWEN | {"intermediate_size": ["a"] * 28}, r"no ffn size .*got \['a'"),
        (QWEN | {"rms_norm_eps": {}, "head_dim": True}, "no own head dim .*got True"),
        (QWEN | {"tie_word_embeddings": "no"}, "no tied embeddings .*got 'no'"),
        (LLAMA3 | {"rope_scaling": {"rope_type": "llama3"}}, "no rope scaling .*got {'rope_type'"),
        (QWEN | {"quantization_config": [8]}, r"quantised weights \(unknown method\)"),
        (QWEN | {"num_attention_heads": 5000}, "5000 heads of size 0; no such model"),
        (QWEN | {"hidden_size": 10**9, "vocab_size": 10**9}, r"describes \S+e\+\d+ parameters"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadParameter, match=sentence) as refused:
        language_model_from_config("org/model", config)

    assert "org/model" in str(refused.value)


@pytest.mark.parametrize("name", ["hf:", "hf:/", "hf:a/b/c", "hf:../etc", "hf:a b", "hf:a/$(x)"])
def test_a_name_that_no_repository_can_have_is_refused_before_anyone_is_asked(name: str) -> None:
    with pytest.raises(BadParameter, match="expected hf:ORG/MODEL"):
        repository_of(name)


QWEN_32B = QWEN | {
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_attention_heads": 40,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
}


@pytest.mark.parametrize(
    ("config", "num_parameters", "machines"),
    [
        (QWEN | {"num_hidden_layers": 2}, 1_500_000_000, ("g5.12xlarge", 1)),
        (QWEN, QWEN_PARAMETERS, ("p4d.24xlarge", 1)),
        (QWEN_32B, 32_763_876_352, ("p5.48xlarge", 2)),
    ],
)
def test_a_recipe_of_the_hub_asks_for_the_cheapest_machines_that_it_fits_on(
    config: dict[str, Any], num_parameters: int, machines: tuple[str, int]
) -> None:
    model = language_model_from_config("org/model", config, num_parameters=num_parameters)

    plan = make_plan("hf:org/model", model=model)

    assert plan.fits
    assert (plan.instance_type, plan.nodes) == machines


def test_a_recipe_of_the_hub_trains_on_from_the_published_weights() -> None:
    recipe = get_recipe("hf:Qwen/Qwen2.5-7B", qwen())

    assert recipe.training.weights == recipe.training.tokenizer == "Qwen/Qwen2.5-7B"
    assert recipe.training.sequence_length == 4096
    smoke = recipe.with_overrides({"preset": "smoke", "steps": "3"})
    assert smoke.model == recipe.model
    assert (smoke.training.steps, smoke.training.dataset) == (3, "python-code")
    assert not smoke.needs_gpu


def test_a_recipe_of_the_hub_needs_what_the_hub_said_of_this_very_model() -> None:
    for model in (None, qwen("other/model")):
        with pytest.raises(UnknownRecipe, match=r"the shape of Qwen/Qwen2\.5-7B is not known here"):
            get_recipe("hf:Qwen/Qwen2.5-7B", model)


def test_the_hub_is_asked_once_and_for_hub_recipes_only() -> None:
    asked: list[str] = []

    def look_up(repository: str) -> LanguageModel:
        asked.append(repository)
        return qwen(repository)

    parse_command("tiny-llama nodes=2", look_up=look_up)
    start = parse_command("hf:Qwen/Qwen2.5-7B nodes=2 steps=50", look_up=look_up)

    assert (start.recipe, start.options.nodes) == ("hf:Qwen/Qwen2.5-7B", 2)
    assert (start.overrides, start.model) == ({"steps": "50"}, qwen())
    assert start.plan == make_plan(start.recipe, nodes=2, overrides={"steps": "50"}, model=qwen())
    assert asked == ["Qwen/Qwen2.5-7B"]


def test_what_the_hub_answers_against_a_model_suggests_no_other_model() -> None:
    def look_up(repository: str) -> LanguageModel:
        raise NotPossibleNow(f"no answer about {repository}")

    with pytest.raises(UserError, match="no answer about org/model") as refused:
        parse_command("hf:org/model nodes=2", look_up=look_up)

    assert refused.value.suggestion is None


def test_a_stored_request_renders_its_job_without_any_hub() -> None:
    request = make_request(
        recipe="hf:Qwen/Qwen2.5-7B",
        nodes=1,
        instance_type="p4d.24xlarge",
        overrides={"steps": "50"},
        model=qwen(),
    )
    stored = TrainingRequest.model_validate_json(request.model_dump_json())

    run_id = RunId("hf-qwen-qwen2-5-7b-0123abcd")
    spec = job_spec(stored, first_assignment(run_id, stored), run_id=run_id, image="trainer:1")
    job = render_pytorch_job(spec)

    assert spec.recipe.model == qwen()
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    command = worker["containers"][0]["command"]
    assert command[:5] == ["torchrun", "-m", "training", "hf:Qwen/Qwen2.5-7B", "steps=50"]
