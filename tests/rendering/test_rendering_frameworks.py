"""The jobs of recipes that another framework trains: command line, environment, image."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from stationmaster.domain.ids import RunId
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.rendering import JobSpec, job_spec
from stationmaster.rendering.frameworks.nemo import PROGRAM
from stationmaster.rendering.frameworks.torchtitan import FETCHING
from stationmaster.rendering.pytorch_job import render_pytorch_job
from stationmaster.rendering.run_objects import render_all
from tests.support.factories import make_request

ROOT = Path(__file__).parents[2]
RUN = RunId("run-0123abcd")
OUTPUT = f"/fsx/runs/{RUN}/output"
SAVED = f"{OUTPUT}/checkpoints"
LM, BRIDGE = "megatron-llama3-8b", "megatron-bridge-llama3.1-8b"
TITAN = "torchtitan-llama3.1-8b"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
KWARGS = "--optimizer.param-groups.0.optimizer-kwargs"
# Of every framework, none with its default.
KEYS = {
    "steps": 500,
    "global_batch_size": 64,
    "micro_batch_size": 2,
    "sequence_length": 4096,
    "learning_rate": 2e-4,
    "min_learning_rate": 5e-5,
    "warmup_steps": 7,
    "weight_decay": 0.2,
    "beta1": 0.8,
    "beta2": 0.99,
    "grad_clip": 0.5,
    "tensor_parallel": 4,
    "checkpoint_every": 100,
    "log_every": 5,
    "eval_every": 250,
    "eval_steps": 3,
    "seed": 9,
}


def spec_of(
    recipe: str,
    *,
    data_root: str = "",
    weights_root: str = "",
    instance: str = "p5.48xlarge",
    program: tuple[str, ...] = (),
    **overrides: Any,
) -> JobSpec:
    request = make_request(
        recipe=recipe,
        instance_type=instance,
        program=program,
        overrides={key: str(value).lower() for key, value in overrides.items()},
    )
    return job_spec(
        request,
        first_assignment(RUN, request),
        run_id=RUN,
        image="theirs:1",
        data_root=data_root,
        weights_root=weights_root,
    )


def flags(recipe: str, **given: Any) -> dict[str, str]:
    """Each flag of the command with its values; "" for one that has none."""
    found: dict[str, str] = {}
    for word in spec_of(recipe, **given).program:
        if word.startswith("--"):
            found[name := word] = ""
        elif found:
            found[name] = f"{found[name]} {word}".strip()
    return found


def settings(**given: Any) -> dict[str, str]:
    """Megatron-Bridge's, by name."""
    return dict(word.split("=", 1) for word in spec_of(BRIDGE, **given).program if "=" in word)


def container(job: Any) -> Any:
    replica = next(iter(job["spec"]["pytorchReplicaSpecs"].values()))
    (only,) = replica["template"]["spec"]["containers"]
    return only


def environment(spec: JobSpec) -> dict[str, str]:
    variables = container(render_pytorch_job(spec))["env"]
    return {each["name"]: each["value"] for each in variables if "value" in each}


def test_megatron_lm_gets_each_key_as_its_flag() -> None:
    keys = {**KEYS, "pipeline_parallel": 2, "context_parallel": 1, "schedule": "linear"}

    expected = {
        "--train-iters": "500",
        "--lr-decay-iters": "500",
        "--global-batch-size": "64",
        "--micro-batch-size": "2",
        "--seq-length": "4096",
        "--lr": "0.0002",
        "--min-lr": "5e-05",
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
    assert expected.items() <= flags(LM, **keys, activation_checkpointing="full").items()


def test_megatron_lm_is_not_told_of_what_is_switched_off() -> None:
    found = flags(LM, tensor_parallel=1, distributed_optimizer="false", eval_every=0)

    gone = {"--sequence-parallel", "--use-distributed-optimizer", "--overlap-param-gather"}
    assert not (gone | {"--eval-interval", "--recompute-granularity"}) & found.keys()
    assert (found["--eval-iters"], found["--split"]) == ("0", "100,0,0")


def test_megatron_lm_resumes_from_what_the_run_has_saved_and_the_result_has_it() -> None:
    given = flags(LM, steps=250, checkpoint_every=100)

    assert given["--save"] == given["--load"] == SAVED
    assert given["--ckpt-format"] == "torch_dist"
    # Only the newest stays: no step of the run is a multiple of this, which Megatron-LM asks to be
    # one of the interval.
    retained = int(given["--save-retain-interval"])
    assert retained > 250
    assert retained % 100 == 0
    assert environment(spec_of(LM))["STATIONMASTER_OUTPUT_DIR"] == OUTPUT


def test_megatron_lm_reads_the_data_and_first_weights_that_were_named() -> None:
    given = flags(LM, dataset="/fsx/data/c4_text_document", weights="/fsx/weights/llama")

    assert given["--data-path"] == "/fsx/data/c4_text_document"
    assert given["--tokenizer-type"] == "HuggingFaceTokenizer"
    assert given["--tokenizer-model"] == "meta-llama/Llama-3.1-8B"
    # Whoever made the data set need not let others write beside it.
    assert given["--data-cache-path"] == f"/fsx/runs/{RUN}/index-cache"
    assert given["--pretrained-checkpoint"] == "/fsx/weights/llama"
    assert "--mock-data" not in given


def test_made_up_tokens_need_no_file_and_new_weights_no_checkpoint() -> None:
    given = flags(LM)

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
    variables = environment(spec_of(LM, instance=instance))

    assert variables.get("CUDA_DEVICE_MAX_CONNECTIONS") == connections


def test_command_that_was_typed_replaces_the_framework() -> None:
    job = render_pytorch_job(spec_of(LM, program=("python", "x.py")))

    assert container(job)["command"] == ["python", "x.py"]


def test_rendered_without_a_deployment_it_names_the_frameworks_image() -> None:
    request = make_request(recipe=LM, instance_type="p5.48xlarge")

    job = render_all(request, run_id=RUN)[-1]

    assert container(job)["image"].startswith("stationmaster/megatron:")


def test_bridge_runs_its_own_recipe() -> None:
    assert spec_of(BRIDGE).program[:8] == (
        *("torchrun", "/opt/Megatron-Bridge/scripts/training/run_recipe.py"),
        *("--recipe", "llama31_8b_pretrain_config", "--dataset", "llm-pretrain-mock"),
        *("--seq_length", "8192"),
    )
    assert "dataset.data_path" not in settings()


def test_bridge_gets_each_key_as_its_setting() -> None:
    keys = {**KEYS, "pipeline_parallel": 2, "schedule": "linear", "dataset": "s3://bucket/text"}
    roots = {"data_root": "d1/files", "weights_root": "w1/files"}
    given = {**keys, **roots, "activation_checkpointing": "full"}

    assert spec_of(BRIDGE, **given).program[4:8] == (
        *("--dataset", "llm-pretrain", "--seq_length", "4096"),
    )
    assert settings(**given) == {
        "train.train_iters": "500",
        "train.global_batch_size": "64",
        "train.micro_batch_size": "2",
        "optimizer.lr": "0.0002",
        "optimizer.min_lr": "5e-05",
        "optimizer.weight_decay": "0.2",
        "optimizer.adam_beta1": "0.8",
        "optimizer.adam_beta2": "0.99",
        "optimizer.clip_grad": "0.5",
        "optimizer.use_distributed_optimizer": "true",
        "scheduler.lr_decay_style": "linear",
        "scheduler.lr_decay_iters": "500",
        "scheduler.lr_warmup_iters": "7",
        "rng.seed": "9",
        "dataset.random_seed": "9",
        "dataset.data_path": "/fsx/data/d1/files/text_document",
        "dataset.path_to_cache": f"/fsx/runs/{RUN}/index-cache",
        "dataset.split": "'98,2,0'",
        "tokenizer.tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer.tokenizer_model": "/fsx/data/d1/files/tokenizer",
        "logger.log_interval": "5",
        "logger.log_throughput": "true",
        "logger.tensorboard_dir": f"{OUTPUT}/tensorboard",
        "validation.eval_iters": "3",
        "validation.eval_interval": "250",
        "model.recompute_granularity": "full",
        "model.recompute_method": "uniform",
        "model.recompute_num_layers": "1",
        "model.tensor_model_parallel_size": "4",
        "model.pipeline_model_parallel_size": "2",
        "model.context_parallel_size": "1",
        "model.sequence_parallel": "true",
        "ddp.use_distributed_optimizer": "true",
        "ddp.overlap_param_gather": "true",
        "checkpoint.save": SAVED,
        "checkpoint.load": SAVED,
        "checkpoint.save_interval": "100",
        "checkpoint.most_recent_k": "2",
        "checkpoint.pretrained_checkpoint": "/fsx/data/w1/files",
    }


def test_bridge_trains_on_all_parts_where_nothing_is_evaluated() -> None:
    found = settings(data_root="d1/files", dataset="packed:c4", eval_every=0, tensor_parallel=1)

    assert (found["dataset.split"], found["validation.eval_iters"]) == ("'100,0,0'", "0")
    assert found["model.sequence_parallel"] == "false"
    assert not {"validation.eval_interval", "checkpoint.pretrained_checkpoint"} & found.keys()


def nemo(**given: Any) -> dict[str, Any]:
    """What NeMo's program reads of its command line."""
    torchrun, program, *words = spec_of("nemo-llama3-8b", **given).program
    assert (torchrun, program) == ("torchrun", PROGRAM)
    path = ROOT / "container" / "nemo2" / Path(program).name
    found: dict[str, Any] = vars(runpy.run_path(str(path))["parse"](words))
    return found


def test_nemo_gets_each_key_by_its_name() -> None:
    keys = {**KEYS, "pipeline_parallel": 2, "context_parallel": 1}
    given = {"dataset": "packed:c4", "data_root": "d1/files", "weights": "/fsx/nemo"}

    assert nemo(**keys, **given, activation_checkpointing="full") == keys | {
        "output_dir": Path(OUTPUT),
        "dataset": "/fsx/data/d1/files/text_document",
        "tokenizer": "/fsx/data/d1/files/tokenizer",
        "weights": "/fsx/nemo",
        "sequence_parallel": True,
        "distributed_optimizer": True,
        "recompute": True,
    }
    plain = nemo(tensor_parallel=1, distributed_optimizer="false")
    assert not any(plain[name] for name in ("sequence_parallel", "distributed_optimizer"))
    assert not any(plain[name] for name in ("recompute", "dataset", "tokenizer", "weights"))
    expected = {"learning_rate": 1e-5, "min_learning_rate": 1e-6, "warmup_steps": 100}
    assert expected.items() <= plain.items()


def test_nemo_resumes_only_where_a_newest_checkpoint_is_whole(tmp_path: Path) -> None:
    can_resume = runpy.run_path(str(ROOT / "container/nemo2/pretrain.py"))["can_resume"]
    (tmp_path / "step=9").mkdir()
    (tmp_path / "step=9-last").mkdir()
    (tmp_path / "step=9-last-unfinished").touch()

    assert not can_resume(tmp_path)
    (tmp_path / "step=4-last").mkdir()
    assert can_resume(tmp_path)


def test_torchtitans_tokenizer_is_fetched_before_torchrun_starts() -> None:
    words = list(spec_of(TITAN, tokenizer=f"org/mirror@{COMMIT}").program)

    assert words[: words.index("torchtitan.train") + 1] == [
        *("python", FETCHING, "org/mirror", "--revision", COMMIT),
        *("--directory", "/tmp/tokenizer", "--"),
        *("torchrun", "--local-ranks-filter", "0", "--role", "rank", "--tee", "3"),
        *("-m", "torchtitan.train"),
    ]
    # The image has what fetches it.
    directory, _, name = FETCHING.rpartition("/")
    copied = (ROOT / "container/torchtitan/Dockerfile").read_text()
    assert f"container/torchtitan/{name} " in copied
    assert f"{directory}/\n" in copied


def test_torchtitan_gets_each_key_as_its_flag() -> None:
    found = flags(TITAN, **KEYS, schedule="cosine", compile=True, cuda_graphs=False)

    behind = list(found).index("--module")
    assert dict(list(found.items())[behind:]) == {
        "--module": "llama3",
        "--config": "llama3_8b",
        "--training.steps": "500",
        "--training.global-batch-size": "64",
        "--training.local-batch-size": "2",
        "--training.seq-len": "4096",
        "--training.max-norm": "0.5",
        "--training.disable-cuda-graphs": "",
        f"{KWARGS}.lr": "0.0002",
        f"{KWARGS}.weight-decay": "0.2",
        f"{KWARGS}.betas": "0.8 0.99 activation-checkpoint:selective",
        "--lr-scheduler.warmup-steps": "7",
        "--lr-scheduler.decay-type": "cosine",
        "--lr-scheduler.min-lr-factor": "0.25",
        "--parallelism.tensor-parallel-degree": "4",
        "--compile.enable": "",
        "--debug.seed": "9",
        "--hf-assets-path": "/tmp/tokenizer",
        "--dataloader.dataset": "c4",
        "--validator.enable": "",
        "--validator.freq": "250",
        "--validator.steps": "3",
        "--checkpoint.enable": "",
        "--checkpoint.folder": "checkpoints",
        "--checkpoint.interval": "100",
        "--checkpoint.keep-latest-k": "2",
        "--checkpoint.last-save-in-hf": "",
        "--checkpoint.export-dtype": "bfloat16",
        "--dump-folder": OUTPUT,
        "--metrics.log-freq": "5",
        "--metrics.disable-color-printing": "",
        "--comm.init-timeout-seconds": "1800",
        "--comm.train-timeout-seconds": "1800",
        "--comm.save-traces-folder": f"/fsx/runs/{RUN}/flight-recorder",
        "--comm.save-traces-file-prefix": "nccl_trace_rank_",
        "--profiler.no-enable-profiling": "",
        "--debug.no-enable-structured-logging": "",
    }


def test_torchtitan_is_not_told_of_what_is_off() -> None:
    found = flags(TITAN, eval_every=0)

    assert not {"--validator.enable", "--validator.freq", "--validator.steps"} & set(found)
    assert not {"--compile.enable", "--training.disable-cuda-graphs"} & set(found)


def test_constant_rate_of_torchtitan_decays_in_no_step() -> None:
    assert flags(TITAN, schedule="constant")["--lr-scheduler.decay-ratio"] == "0.0"
    assert "--lr-scheduler.decay-ratio" not in flags(TITAN, schedule="linear")


@pytest.mark.parametrize(
    ("way", "word"), [("off", "none"), ("selective", "selective"), ("full", "full")]
)
def test_checkpointing_of_activations_is_torchtitans_last_word(way: str, word: str) -> None:
    last = spec_of(TITAN, activation_checkpointing=way).program[-1]

    assert last == f"activation-checkpoint:{word}"
