"""The jobs of recipes that another framework trains: command line, environment, roles, image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stationmaster.domain.ids import RunId
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.rendering import job_spec
from stationmaster.rendering.pytorch_job import render_pytorch_job
from stationmaster.rendering.run_objects import render_all
from tests.support.factories import make_request

RUN = RunId("megatron-llama3-8b-0123abcd")
SAVED = f"/fsx/runs/{RUN}/output/checkpoints"


def render(*, instance: str = "p5.48xlarge", image: str = "theirs:1", **overrides: Any) -> Any:
    request = make_request(
        recipe="megatron-llama3-8b",
        instance_type=instance,
        overrides={key: str(value) for key, value in overrides.items()},
    )
    spec = job_spec(request, first_assignment(RUN, request), run_id=RUN, image=image)
    return render_pytorch_job(spec)


def container(job: Any) -> Any:
    replica = next(iter(job["spec"]["pytorchReplicaSpecs"].values()))
    (only,) = replica["template"]["spec"]["containers"]
    return only


def flags(job: Any) -> dict[str, str]:
    """Each flag of the command with its value; "" for one that has none."""
    words: Sequence[str] = container(job)["command"][2:]
    named = [index for index, word in enumerate(words) if word.startswith("--")]
    ends = [*named[1:], len(words)]
    return {
        words[start]: " ".join(words[start + 1 : end])
        for start, end in zip(named, ends, strict=True)
    }


def environment(job: Any) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(job)["env"] if "value" in each}


def test_keys_become_the_flags_that_they_stand_for() -> None:
    job = render(
        steps=500,
        global_batch_size=64,
        micro_batch_size=2,
        sequence_length=4096,
        learning_rate=3e-4,
        min_learning_rate=3e-5,
        schedule="linear",
        warmup_steps=7,
        tensor_parallel=4,
        pipeline_parallel=2,
        context_parallel=1,
        activation_checkpointing="full",
        checkpoint_every=100,
        log_every=5,
        eval_every=250,
        eval_steps=3,
        seed=9,
    )

    expected = {
        "--train-iters": "500",
        "--lr-decay-iters": "500",
        "--global-batch-size": "64",
        "--micro-batch-size": "2",
        "--seq-length": "4096",
        "--lr": "0.0003",
        "--min-lr": "3e-05",
        "--lr-decay-style": "linear",
        "--lr-warmup-iters": "7",
        "--tensor-model-parallel-size": "4",
        "--pipeline-model-parallel-size": "2",
        "--context-parallel-size": "1",
        "--sequence-parallel": "",
        "--use-distributed-optimizer": "",
        "--overlap-grad-reduce": "",
        "--overlap-param-gather": "",
        "--recompute-granularity": "full",
        "--recompute-method": "uniform",
        "--recompute-num-layers": "1",
        "--save-interval": "100",
        "--log-interval": "5",
        "--log-throughput": "",
        "--eval-interval": "250",
        "--eval-iters": "3",
        "--seed": "9",
    }
    assert expected.items() <= flags(job).items()


def test_what_is_switched_off_is_left_out() -> None:
    job = render(tensor_parallel=1, distributed_optimizer="false", eval_every=0)

    gone = {"--sequence-parallel", "--use-distributed-optimizer", "--overlap-param-gather"}
    assert not (gone | {"--eval-interval", "--recompute-granularity"}) & flags(job).keys()
    assert flags(job)["--eval-iters"] == "0"
    assert flags(job)["--split"] == "100,0,0"


def test_restart_resumes_from_what_the_run_has_saved_and_the_result_has_it() -> None:
    given = flags(render(steps=250, checkpoint_every=100))

    assert given["--save"] == given["--load"] == SAVED
    assert given["--ckpt-format"] == "torch_dist"
    # Only the newest stays: no step of the run is a multiple of this, which Megatron-LM asks to be
    # one of the interval.
    retained = int(given["--save-retain-interval"])
    assert retained > 250
    assert retained % 100 == 0
    assert environment(render())["STATIONMASTER_OUTPUT_DIR"] == f"/fsx/runs/{RUN}/output"


def test_data_set_and_first_weights_are_those_that_were_named() -> None:
    given = flags(render(dataset="/fsx/data/c4_text_document", weights="/fsx/weights/llama"))

    assert given["--data-path"] == "/fsx/data/c4_text_document"
    assert given["--tokenizer-type"] == "HuggingFaceTokenizer"
    assert given["--tokenizer-model"] == "meta-llama/Llama-3.1-8B"
    # Whoever made the data set need not let others write beside it.
    assert given["--data-cache-path"] == f"/fsx/runs/{RUN}/index-cache"
    assert given["--pretrained-checkpoint"] == "/fsx/weights/llama"
    assert "--mock-data" not in given


def test_made_up_tokens_need_no_file_and_new_weights_no_checkpoint() -> None:
    given = flags(render())

    assert given["--mock-data"] == ""
    assert (given["--tokenizer-type"], given["--vocab-size"]) == ("NullTokenizer", "128256")
    assert not {"--data-path", "--pretrained-checkpoint"} & given.keys()


@pytest.mark.parametrize(
    ("instance", "connections"),
    [("p4d.24xlarge", "1"), ("p5.48xlarge", "1"), ("p6-b200.48xlarge", None)],
)
def test_kernels_are_ordered_where_megatron_asks_for_it(
    instance: str, connections: str | None
) -> None:
    variables = environment(render(instance=instance))

    assert variables.get("CUDA_DEVICE_MAX_CONNECTIONS") == connections


def test_command_that_was_typed_replaces_the_framework() -> None:
    request = make_request(
        recipe="megatron-llama3-8b", instance_type="p5.48xlarge", program=("python", "x.py")
    )
    spec = job_spec(request, first_assignment(RUN, request), run_id=RUN, image="i")

    assert container(render_pytorch_job(spec))["command"] == ["python", "x.py"]


def test_rendered_without_a_deployment_it_names_the_frameworks_image() -> None:
    request = make_request(recipe="megatron-llama3-8b", instance_type="p5.48xlarge")

    job = render_all(request, run_id=RUN)[-1]

    assert container(job)["image"].startswith("stationmaster/megatron:")
