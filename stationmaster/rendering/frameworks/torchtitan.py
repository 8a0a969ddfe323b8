"""torchtitan's command line, for the version that `container/torchtitan` has: 0.3.0.

Every flag is one of its `Trainer.Config`; torchtitan refuses flags that it does not know. How many
pods there are and where they meet, torchrun reads of the operator's PET_*.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.framework_training import TitanTraining
from stationmaster.domain.catalogue.models import LanguageModel

# Where the image has it: it fetches the tokenizer, and becomes torchrun.
FETCHING: Final = "/usr/local/lib/stationmaster/with_tokenizer.py"
# On the pod's own disk.
TOKENIZER_DIRECTORY: Final = "/tmp/tokenizer"
# Its configuration of each model of the catalogue's that it trains: the published shape, fp32
# weights, bf16 products.
CONFIGURATIONS: Final = {"meta-llama/Llama-3.1-8B": "llama3_8b"}
# A collective waits so long, also for the rank that writes the exported model. Its own 100 s are
# shorter than a save.
_TIMEOUT_S: Final = 1800
# Its least: the newest may be in the process of being written.
_KEPT_CHECKPOINTS: Final = 2
_KWARGS: Final = "optimizer.param-groups.0.optimizer-kwargs"
# Its word for each way of activation checkpointing. It comes last, as a subcommand.
_CHECKPOINTING: Final = {"off": "none", "selective": "selective", "full": "full"}

Flags = dict[str, str | int | float | bool]
"""Flags by name; True: without a value, False: left out."""


def render_program(
    training: TitanTraining, model: LanguageModel, output_dir: str, work_dir: str
) -> tuple[str, ...]:
    """Return the words that each pod runs.

    It saves to, and after a restart loads from, `output_dir`/checkpoints: step-N for each.
    """
    repository, commit = training.tokenizer_parts
    flags = (
        _training_flags(training)
        | _data_flags(training)
        | _checkpoint_flags(training)
        | _surrounding_flags(training, output_dir=output_dir, work_dir=work_dir)
    )
    return (
        *("python", FETCHING, repository, "--revision", commit),
        *("--directory", TOKENIZER_DIRECTORY, "--"),
        # Every rank logs the same.
        *("torchrun", "--local-ranks-filter", "0", "--role", "rank", "--tee", "3"),
        *("-m", "torchtitan.train"),
        *("--module", "llama3", "--config", CONFIGURATIONS[model.repository]),
        *_words(flags),
        *(f"--{_KWARGS}.betas", str(training.beta1), str(training.beta2)),
        f"activation-checkpoint:{_CHECKPOINTING[training.activation_checkpointing]}",
    )


def _words(flags: Flags) -> list[str]:
    words = []
    for name, value in flags.items():
        if value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words.append(str(value))
    return words


def _training_flags(training: TitanTraining) -> Flags:
    is_constant = training.schedule == "constant"
    return {
        "training.steps": training.steps,
        "training.global-batch-size": training.global_batch_size,
        "training.local-batch-size": training.micro_batch_size,
        "training.seq-len": training.sequence_length,
        "training.max-norm": training.grad_clip,
        "training.disable-cuda-graphs": not training.cuda_graphs,
        f"{_KWARGS}.lr": training.learning_rate,
        f"{_KWARGS}.weight-decay": training.weight_decay,
        "lr-scheduler.warmup-steps": training.warmup_steps,
        # None of the steps decay; without it, all after warm-up do.
        **({"lr-scheduler.decay-ratio": 0.0} if is_constant else {}),
        "lr-scheduler.decay-type": "linear" if is_constant else training.schedule,
        "lr-scheduler.min-lr-factor": training.min_learning_rate / training.learning_rate,
        "parallelism.tensor-parallel-degree": training.tensor_parallel,
        "compile.enable": training.compile,
        "debug.seed": training.seed,
    }


def _data_flags(training: TitanTraining) -> Flags:
    evaluates = training.eval_every > 0
    return {
        "hf-assets-path": TOKENIZER_DIRECTORY,
        "dataloader.dataset": training.dataset,
        "validator.enable": evaluates,
        **({"validator.freq": training.eval_every} if evaluates else {}),
        **({"validator.steps": training.eval_steps} if evaluates else {}),
    }


def _checkpoint_flags(training: TitanTraining) -> Flags:
    """Make the last save the model alone, in the form of the hub."""
    return {
        "checkpoint.enable": True,
        "checkpoint.folder": "checkpoints",
        "checkpoint.interval": training.checkpoint_every,
        "checkpoint.keep-latest-k": _KEPT_CHECKPOINTS,
        "checkpoint.last-save-in-hf": True,
        "checkpoint.export-dtype": "bfloat16",
    }


def _surrounding_flags(training: TitanTraining, *, output_dir: str, work_dir: str) -> Flags:
    """Return where it writes, its log, and traces of collectives beside those of other runs."""
    return {
        "dump-folder": output_dir,
        "metrics.log-freq": training.log_every,
        "metrics.disable-color-printing": True,
        "comm.init-timeout-seconds": _TIMEOUT_S,
        "comm.train-timeout-seconds": _TIMEOUT_S,
        "comm.save-traces-folder": f"{work_dir}/flight-recorder",
        "comm.save-traces-file-prefix": "nccl_trace_rank_",
        "profiler.no-enable-profiling": True,
        "debug.no-enable-structured-logging": True,
    }
