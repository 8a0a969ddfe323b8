"""Where the jobs of Megatron's recipes find what was prepared, and Megatron-Bridge's words."""

from __future__ import annotations

from typing import Any

from stationmaster.domain.ids import RunId
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.rendering.job_spec import JobSpec, job_spec
from tests.support.factories import make_request

RUN = RunId("run-0123abcd")
LM, BRIDGE = "megatron-llama3-8b", "megatron-bridge-llama3.1-8b"
SAVED = f"/fsx/runs/{RUN}/output/checkpoints"


def spec_of(recipe: str, *, data: str = "", weights: str = "", **overrides: Any) -> JobSpec:
    request = make_request(
        recipe=recipe,
        instance_type="p5.48xlarge",
        overrides={key: str(value) for key, value in overrides.items()},
    )
    return job_spec(
        request,
        first_assignment(RUN, request),
        run_id=RUN,
        image="theirs:1",
        data_root=data,
        weights_root=weights,
    )


def settings(spec: JobSpec) -> dict[str, str]:
    """Megatron-Bridge's, by name."""
    return dict(word.split("=", 1) for word in spec.program if "=" in word)


def test_megatron_lm_reads_the_prefix_the_tokenizer_and_the_weights() -> None:
    spec = spec_of(LM, data="d1/files", weights="w1/files", dataset="packed:c4")

    words = dict(zip(spec.program, spec.program[1:], strict=False))
    assert words["--data-path"] == "/fsx/data/d1/files/text_document"
    assert words["--tokenizer-model"] == "/fsx/data/d1/files/tokenizer"
    assert words["--pretrained-checkpoint"] == "/fsx/data/w1/files"
    assert words["--load"] == SAVED


def test_bridge_runs_its_own_recipe() -> None:
    assert spec_of(BRIDGE).program[:8] == (
        *("torchrun", "/opt/Megatron-Bridge/scripts/training/run_recipe.py"),
        *("--recipe", "llama31_8b_pretrain_config", "--dataset", "llm-pretrain-mock"),
        *("--seq_length", "8192"),
    )
    assert "dataset.data_path" not in settings(spec_of(BRIDGE))


def test_bridge_gets_each_key_as_its_setting() -> None:
    spec = spec_of(
        BRIDGE,
        data="d1/files",
        weights="w1/files",
        dataset="s3://bucket/text",
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
        activation_checkpointing="full",
        checkpoint_every=100,
        log_every=5,
        eval_every=250,
        eval_steps=3,
        seed=9,
    )

    assert spec.program[4:8] == ("--dataset", "llm-pretrain", "--seq_length", "4096")
    assert settings(spec) == {
        "train.train_iters": "500",
        "train.global_batch_size": "64",
        "train.micro_batch_size": "2",
        "optimizer.lr": "0.0003",
        "optimizer.min_lr": "3e-05",
        "optimizer.weight_decay": "0.1",
        "optimizer.adam_beta1": "0.9",
        "optimizer.adam_beta2": "0.95",
        "optimizer.clip_grad": "1",
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
        "logger.tensorboard_dir": f"/fsx/runs/{RUN}/output/tensorboard",
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
    spec = spec_of(BRIDGE, data="d1/files", dataset="packed:c4", eval_every=0, tensor_parallel=1)

    found = settings(spec)
    assert (found["dataset.split"], found["validation.eval_iters"]) == ("'100,0,0'", "0")
    assert found["model.sequence_parallel"] == "false"
    assert "validation.eval_interval" not in found
    assert "checkpoint.pretrained_checkpoint" not in found
