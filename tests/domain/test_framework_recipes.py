"""Recipes that another framework trains: their keys, the machines they divide, their data."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.datasets import FOR_MEGATRON
from stationmaster.domain.errors import NotPossibleNow, UserError
from stationmaster.domain.planning.estimators import checkpoint_bytes, memory_of, step_time
from stationmaster.domain.planning.frameworks.megatron import bubble, padded_vocabulary
from stationmaster.domain.planning.frameworks.rules import why_no_image
from stationmaster.domain.planning.memory import GIB
from stationmaster.domain.planning.requirements import check_data, repositories_of
from stationmaster.domain.run.events import RunPhase
from tests.support import plans
from tests.support.factories import START, make_request, make_run
from tests.support.typed import RUN, channel, saved

MEGATRON = "megatron-llama3-8b"
lay = partial(plans.lay, MEGATRON)
FRAMEWORKS = [name for name, recipe in CATALOGUE.items() if not recipe.uses_own_trainer]


def start(text: str, **asked: Any) -> StartRun:
    command = parse_command(text, **asked)
    assert isinstance(command, StartRun)
    return command


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_framework_has_no_key_of_the_own_trainer_that_it_ignores(name: str) -> None:
    ignored = {"optimizer", "momentum", "cpu_offload", "profile", "document_mask", "parallelism"}

    assert not ignored & set(CATALOGUE[name].keys)


# What Megatron-LM's own estimate says of its arguments for these keys on 16 GPUs (core_v0.19.0,
# compute_weight_and_optimizer_memory), in GiB.
@pytest.mark.parametrize(
    ("keys", "gib"),
    [
        ({}, 28.05),
        ({"tensor_parallel": 4, "pipeline_parallel": 2}, 11.22),
        ({"tensor_parallel": 1, "distributed_optimizer": "false"}, 134.62),
        ({"pipeline_parallel": 4}, 12.69),
    ],
)
def test_weights_and_optimizer_take_what_megatron_estimates(keys: Any, gib: float) -> None:
    memory = memory_of(lay(**keys))

    assert (memory.weights + memory.gradients + memory.optimizer) / GIB == pytest.approx(
        gib, abs=0.01
    )


def test_activations_of_a_layer_take_what_megatron_estimates() -> None:
    layer = 8192 * 4096 * (18 + 4 * 14336 / 4096)  # bytes of a sequence

    assert memory_of(lay()).activations == pytest.approx(32 * layer / 2)
    assert memory_of(lay(sequence_parallel="false")).activations == pytest.approx(
        32 * 8192 * 4096 * (10 + (8 + 4 * 3.5) / 2)
    )
    recomputed = memory_of(lay(activation_checkpointing="full")).activations
    assert recomputed == pytest.approx((31 * 2 * 8192 * 4096 + layer) / 2)


def test_stages_keep_the_activations_of_as_many_micro_batches() -> None:
    whole = memory_of(lay()).activations

    # Two stages have half of the layers each, and the first keeps two micro-batches of them.
    assert memory_of(lay(pipeline_parallel=2)).activations == pytest.approx(whole)
    # Of one micro-batch there is no second.
    few = lay(pipeline_parallel=2, global_batch_size=4)
    assert few.micro_batches == 1
    assert memory_of(few).activations == pytest.approx(whole / 2)


def test_bubble_makes_a_step_longer() -> None:
    flat, staged = lay(global_batch_size=32), lay(global_batch_size=32, pipeline_parallel=2)

    assert bubble(flat) == 0
    assert staged.micro_batches == 8
    assert bubble(staged) == pytest.approx(1 / 9)
    assert step_time(staged).computing == pytest.approx(step_time(flat).computing * 9 / 8)


def test_gradients_of_a_stage_within_a_node_do_not_cross_its_border() -> None:
    spread, within = lay(), lay(pipeline_parallel=2)

    # What crosses it then are activations on their way to the next stage, and their gradients.
    passed = 8 * 2 * 32 * 8192 / 2 * 4096 * 2
    assert step_time(within).network == pytest.approx(passed / (3200e9 / 8 * 0.7))
    assert step_time(spread).network > 2 * step_time(within).network


def test_vocabulary_is_padded_for_the_gpus_that_share_it() -> None:
    model = lay().recipe.model

    assert [padded_vocabulary(model, size) for size in (1, 2, 4, 8)] == [  # type: ignore[arg-type]
        128256,
        128256,
        128512,
        129024,
    ]


def test_checkpoint_has_weights_twice_and_two_moments() -> None:
    assert checkpoint_bytes(lay()) == 14 * 8_030_261_248


@pytest.mark.parametrize("words", ["resume {}", f"{MEGATRON} resume_from={{}}"])
def test_result_of_a_framework_is_continued_by_no_run(words: str) -> None:
    theirs = saved(recipe=MEGATRON, instance_type="p5.48xlarge")

    with pytest.raises(NotPossibleNow, match="Megatron-LM trained that run") as error:
        parse_command(words.format(RUN), find_saved=channel(theirs))

    assert f"stationmaster results {RUN} --to DIR" in str(error.value)


def test_model_of_an_own_run_is_no_checkpoint_of_a_framework() -> None:
    ours = saved(recipe="llama3.1-8b", instance_type="p5.48xlarge")

    with pytest.raises(UserError, match="Megatron-LM reads checkpoints of its own"):
        start(f"{MEGATRON} weights={RUN}", find_saved=channel(ours))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"dataset": "c4"}, 'dataset="c4" is not read by Megatron-LM here; use packed:c4'),
        ({"dataset": "/fsx/a"}, "the run's file system is new and empty"),
        ({"weights": "org/a/b"}, 'weights="org/a/b" is not read by Megatron-LM here'),
        ({"weights": "/fsx/a"}, "the run's file system is new and empty"),
        ({"tokenizer": "/fsx/a"}, 'tokenizer="/fsx/a" is not read'),
    ],
)
def test_data_that_the_framework_cannot_read_is_refused(keys: dict[str, str], said: str) -> None:
    recipe = CATALOGUE[MEGATRON].with_overrides(keys)

    with pytest.raises(NotPossibleNow) as error:
        check_data(recipe)

    assert said in str(error.value)


@pytest.mark.parametrize("condition", ["Succeeded", "Failed"])
def test_run_of_a_framework_has_run_once_its_job_has_ended(condition: str) -> None:
    framework = make_request(recipe=MEGATRON, instance_type="p5.48xlarge")

    # Its pods may be reported later than the job's end.
    ended = make_run(RunPhase.SUBMITTING, request=framework, job_condition=condition)
    assert ended.has_trained
    # The own trainer says that it trains; what it says may be reported later than its success.
    own = make_run(RunPhase.SUBMITTING, job_condition=condition)
    assert own.has_trained is (condition == "Succeeded")
    assert not make_run(RunPhase.SUBMITTING, request=framework).has_trained
    # Whatever it prints: what it has written is to be saved.
    running = {"phases": [(RunPhase.RUNNING, START)]}
    assert make_run(RunPhase.RUNNING, request=framework, **running).has_trained
    assert not make_run(RunPhase.RUNNING, **running).has_trained


def test_deployment_without_the_image_says_what_to_set() -> None:
    recipe = CATALOGUE[MEGATRON]

    assert 'add "megatron" to more_images in cdk.json' in why_no_image(
        recipe, is_this_machine=False
    )
    assert "local mode has neither" in why_no_image(recipe, is_this_machine=True)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"weights": "org/model"}, "is not read by NeMo here; use random, or /fsx/PATH"),
        ({"schedule": "linear"}, "schedule"),
    ],
)
def test_what_nemo_does_not_do_is_refused(keys: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_data(CATALOGUE["nemo-llama3-8b"].with_overrides(keys))

    request = make_request(recipe="nemo-llama3-8b", overrides={"weights": "/fsx/nemo"})
    assert (request.weights_to_convert, repositories_of(request.resolved)) == ("", ())


OF_MEGATRON = ("megatron-llama3-8b", "megatron-bridge-llama3.1-8b")
each_recipe = pytest.mark.parametrize("name", OF_MEGATRON)


@each_recipe
@pytest.mark.parametrize(
    "dataset", ["packed:c4", "packed:hub:o/texts/en", "s3://bucket/text", "/fsx/data/c4_text"]
)
def test_text_is_prepared_before_training_or_lies_on_a_file_system(name: str, dataset: str) -> None:
    recipe = CATALOGUE[name].with_overrides({"dataset": dataset})

    check_data(recipe, on_cluster=dataset.startswith("/"))

    assert recipe.data_task == FOR_MEGATRON
    assert repositories_of(recipe) == ("meta-llama/Llama-3.1-8B",)


@each_recipe
@pytest.mark.parametrize("dataset", ["c4", "hub:o/texts", "python-code", "packed:x"])
def test_text_that_is_not_prepared_is_refused_with_what_is(name: str, dataset: str) -> None:
    recipe = CATALOGUE[name].with_overrides({"dataset": dataset})

    with pytest.raises(NotPossibleNow, match="use packed:c4, packed:hub:ORG/NAME, s3://"):
        check_data(recipe)


@each_recipe
def test_weights_of_the_hub_are_converted_first(name: str) -> None:
    keys = {"weights": "meta-llama/Llama-3.1-8B"}
    recipe = CATALOGUE[name].with_overrides(keys)
    request = make_request(recipe=name, overrides=keys)

    check_data(recipe)

    assert request.weights_to_convert == "meta-llama/Llama-3.1-8B"
    assert request.brings_data
    assert repositories_of(recipe) == ("meta-llama/Llama-3.1-8B",)


def test_gated_configuration_that_megatron_bridge_reads_is_asked_for() -> None:
    assert repositories_of(CATALOGUE[OF_MEGATRON[0]]) == ()
    assert repositories_of(CATALOGUE[OF_MEGATRON[1]]) == ("meta-llama/Llama-3.1-8B",)


@pytest.mark.parametrize(
    ("recipe", "weights", "program"),
    [
        ("megatron-llama3-8b", "random", ()),
        ("megatron-llama3-8b", "/fsx/weights/llama", ()),
        ("llama2-7b", "org/model", ()),
        ("megatron-llama3-8b", "org/model", ("sh",)),
    ],
)
def test_other_weights_are_not_converted(
    recipe: str, weights: str, program: tuple[str, ...]
) -> None:
    request = make_request(recipe=recipe, overrides={"weights": weights}, program=program)

    assert request.weights_to_convert == ""
    assert not request.brings_data
