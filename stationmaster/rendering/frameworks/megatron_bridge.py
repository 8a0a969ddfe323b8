"""Megatron-Bridge's command line, for the version that `container/nemo` has: 0.5.0.

Its script takes a recipe of its own and settings in Hydra's syntax; it refuses settings that its
configuration does not have. Source: Megatron-Bridge v0.5.0, scripts/training/run_recipe.py,
src/megatron/bridge/recipes/llama/llama3.py and src/megatron/bridge/training/config.py. How many
pods there are and where they meet, torchrun reads of the operator's PET_*.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.framework_training import MOCK, RANDOM, BridgeTraining
from stationmaster.domain.catalogue.models import LanguageModel

# Where the image has it.
PROGRAM: Final = "/opt/Megatron-Bridge/scripts/training/run_recipe.py"
# Its recipe for each model of the catalogue's that it trains: the published shape, bf16 with fp32
# gradients.
RECIPES: Final = {"meta-llama/Llama-3.1-8B": "llama31_8b_pretrain_config"}
# Parts of a data set for training, evaluation and test, of 100; unquoted, Hydra reads three values.
_SPLIT: Final = "'98,2,0'"
_ALL_FOR_TRAINING: Final = "'100,0,0'"

Settings = dict[str, str | int | float | bool]


def render_program(
    training: BridgeTraining, model: LanguageModel, output_dir: str, work_dir: str
) -> tuple[str, ...]:
    """Return the words that each pod runs.

    It saves to, and after a restart loads from, `output_dir`/checkpoints; first weights are loaded
    where there is no checkpoint yet, without an optimizer's state.
    """
    is_mock = training.dataset == MOCK
    settings = (
        _training_settings(training)
        | _parallel_settings(training)
        | ({} if is_mock else _data_settings(training, work_dir=work_dir))
        | _checkpoint_settings(training, f"{output_dir}/checkpoints")
        | {"logger.tensorboard_dir": f"{output_dir}/tensorboard"}
    )
    return (
        *("torchrun", PROGRAM),
        *("--recipe", RECIPES[model.repository]),
        *("--dataset", "llm-pretrain-mock" if is_mock else "llm-pretrain"),
        *("--seq_length", str(training.sequence_length)),
        *(f"{name}={_text(value)}" for name, value in settings.items()),
    )


def _text(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _training_settings(training: BridgeTraining) -> Settings:
    settings: Settings = {
        "train.train_iters": training.steps,
        "train.global_batch_size": training.global_batch_size,
        "train.micro_batch_size": training.micro_batch_size,
        "optimizer.lr": training.learning_rate,
        "optimizer.min_lr": training.min_learning_rate,
        "optimizer.weight_decay": training.weight_decay,
        "optimizer.adam_beta1": training.beta1,
        "optimizer.adam_beta2": training.beta2,
        "optimizer.clip_grad": training.grad_clip,
        "scheduler.lr_decay_style": training.schedule,
        "scheduler.lr_decay_iters": training.steps,
        "scheduler.lr_warmup_iters": training.warmup_steps,
        "rng.seed": training.seed,
        "dataset.random_seed": training.seed,
        "logger.log_interval": training.log_every,
        "logger.log_throughput": True,
        "validation.eval_iters": training.eval_steps if training.eval_every else 0,
    }
    if training.eval_every:
        settings["validation.eval_interval"] = training.eval_every
    if training.activation_checkpointing == "full":
        settings |= {
            "model.recompute_granularity": "full",
            "model.recompute_method": "uniform",
            "model.recompute_num_layers": 1,
        }
    return settings


def _parallel_settings(training: BridgeTraining) -> Settings:
    divides = training.distributed_optimizer
    return {
        "model.tensor_model_parallel_size": training.tensor_parallel,
        "model.pipeline_model_parallel_size": training.pipeline_parallel,
        "model.context_parallel_size": training.context_parallel,
        "model.sequence_parallel": training.splits_sequences,
        "ddp.use_distributed_optimizer": divides,
        "optimizer.use_distributed_optimizer": divides,
        "ddp.overlap_param_gather": divides,
    }


def _data_settings(training: BridgeTraining, *, work_dir: str) -> Settings:
    return {
        "dataset.data_path": training.dataset,
        "dataset.path_to_cache": f"{work_dir}/index-cache",
        "dataset.split": _SPLIT if training.eval_every else _ALL_FOR_TRAINING,
        "tokenizer.tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer.tokenizer_model": training.tokenizer,
    }


def _checkpoint_settings(training: BridgeTraining, directory: str) -> Settings:
    """Keep the newest two."""
    settings: Settings = {
        "checkpoint.save": directory,
        "checkpoint.load": directory,
        "checkpoint.save_interval": training.checkpoint_every,
        "checkpoint.most_recent_k": 2,
    }
    if training.weights != RANDOM:
        settings["checkpoint.pretrained_checkpoint"] = training.weights
    return settings
