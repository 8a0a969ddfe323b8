"""Megatron-LM's command line, for the version that `container/megatron` has: core_v0.19.0.

Every flag is one of `megatron/training/arguments.py` there, or of the dataclasses that it makes
flags of; Megatron-LM refuses flags that it does not know. How many pods there are and where they
meet, torchrun reads of the operator's PET_*.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.framework_training import MOCK, RANDOM, MegatronTraining
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.models import LanguageModel

# Where the image has it.
PROGRAM: Final = "/opt/Megatron-LM/pretrain_gpt.py"
# Parts of a data set for training, evaluation and test, of 100.
_SPLIT: Final = "98,2,0"
_ALL_FOR_TRAINING: Final = "100,0,0"
# A collective waits so long for ranks that read a checkpoint or build the data set's index.
_TIMEOUT_MIN: Final = 30
# From this generation on, kernels are ordered without CUDA_DEVICE_MAX_CONNECTIONS. Source:
# Megatron-LM, megatron/training/arguments.py, validate_args.
_BLACKWELL: Final = ("B200", "B300", "RTX PRO 6000")

Flags = dict[str, str | int | float | bool]
"""Flags by name; True: without a value, False: left out."""


def render_program(
    training: MegatronTraining, model: LanguageModel, output_dir: str, work_dir: str
) -> tuple[str, ...]:
    """Return the words that each pod runs.

    It saves to, and after a restart loads from, `output_dir`/checkpoints: the file
    latest_checkpointed_iteration.txt there names the newest checkpoint that is whole.
    """
    flags = (
        _model_flags(model, training)
        | _training_flags(training)
        | _parallel_flags(training)
        | _data_flags(training, model, work_dir=work_dir)
        | _checkpoint_flags(training, f"{output_dir}/checkpoints")
    )
    return ("torchrun", PROGRAM, *_words(flags))


def render_environment(training: MegatronTraining, instance: InstanceType) -> dict[str, str]:
    """Megatron-LM refuses to split products before Blackwell where this is not 1."""
    if instance.gpu in _BLACKWELL:
        return {}
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def _words(flags: Flags) -> list[str]:
    words = []
    for name, value in flags.items():
        if value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return words


def _model_flags(model: LanguageModel, training: MegatronTraining) -> Flags:
    """Return the published shape: Megatron-LM's defaults are GPT-2's."""
    scaling = model.rope_scaling
    return {
        "num-layers": model.layers,
        "hidden-size": model.hidden_size,
        "ffn-hidden-size": model.ffn_size,
        "num-attention-heads": model.heads,
        "group-query-attention": model.kv_heads < model.heads,
        **({"num-query-groups": model.kv_heads} if model.kv_heads < model.heads else {}),
        "kv-channels": model.head_dim,
        "seq-length": training.sequence_length,
        "max-position-embeddings": max(training.sequence_length, model.context_length),
        "position-embedding-type": "rope",
        "rotary-base": int(model.rope_theta),
        "use-rope-scaling": scaling is not None,
        **({"rope-scaling-factor": scaling.factor} if scaling is not None else {}),
        "normalization": "RMSNorm",
        "norm-epsilon": model.norm_epsilon,
        "swiglu": True,
        "untie-embeddings-and-output-weights": not model.tied_embeddings,
        "disable-bias-linear": True,
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        # cuDNN's flash attention, as Megatron-LM's own example for Llama 3 8B has it.
        "attention-backend": "fused",
    }


def _training_flags(training: MegatronTraining) -> Flags:
    recomputes = training.activation_checkpointing == "full"
    return {
        "micro-batch-size": training.micro_batch_size,
        "global-batch-size": training.global_batch_size,
        "train-iters": training.steps,
        "lr": training.learning_rate,
        "min-lr": training.min_learning_rate,
        "lr-decay-style": training.schedule,
        "lr-decay-iters": training.steps,
        "lr-warmup-iters": training.warmup_steps,
        "weight-decay": training.weight_decay,
        "adam-beta1": training.beta1,
        "adam-beta2": training.beta2,
        "clip-grad": training.grad_clip,
        "bf16": True,
        **({"recompute-granularity": "full"} if recomputes else {}),
        **({"recompute-method": "uniform", "recompute-num-layers": 1} if recomputes else {}),
        "seed": training.seed,
        "log-interval": training.log_every,
        "log-throughput": True,
        "eval-iters": training.eval_steps if training.eval_every else 0,
        **({"eval-interval": training.eval_every} if training.eval_every else {}),
    }


def _parallel_flags(training: MegatronTraining) -> Flags:
    divides = training.distributed_optimizer
    return {
        "tensor-model-parallel-size": training.tensor_parallel,
        "pipeline-model-parallel-size": training.pipeline_parallel,
        "context-parallel-size": training.context_parallel,
        "sequence-parallel": training.splits_sequences,
        "use-distributed-optimizer": divides,
        "overlap-grad-reduce": True,
        "overlap-param-gather": divides,
        "distributed-timeout-minutes": _TIMEOUT_MIN,
    }


def _data_flags(training: MegatronTraining, model: LanguageModel, *, work_dir: str) -> Flags:
    shared: Flags = {
        "split": _SPLIT if training.eval_every else _ALL_FOR_TRAINING,
        "no-create-attention-mask-in-dataloader": True,
    }
    if training.dataset == MOCK:
        numbers: Flags = {"tokenizer-type": "NullTokenizer", "vocab-size": model.vocab_size}
        return {"mock-data": True, **numbers, **shared}
    return {
        "data-path": training.dataset,
        "data-cache-path": f"{work_dir}/index-cache",
        "tokenizer-type": "HuggingFaceTokenizer",
        "tokenizer-model": training.tokenizer,
        **shared,
    }


def _checkpoint_flags(training: MegatronTraining, directory: str) -> Flags:
    """Keep one complete checkpoint, and remove the one before it.

    First weights are loaded where there is no checkpoint yet, and without an optimizer's state.
    """
    interval = training.checkpoint_every
    beyond = interval * (training.steps // interval + 1)
    flags: Flags = {
        "save": directory,
        "load": directory,
        "save-interval": interval,
        "save-retain-interval": beyond,
        "ckpt-format": "torch_dist",
    }
    if training.weights != RANDOM:
        flags["pretrained-checkpoint"] = training.weights
    return flags
