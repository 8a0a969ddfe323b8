"""torchrun pretrain.py --output_dir DIR --steps N --learning_rate RATE ...

Trains Llama 3.1 8B by `nemo.collections.llm.train` of NeMo 2.5.0, which has no program that takes
these settings. Below DIR/checkpoints the three of the lowest loss of training stay, and the newest,
step=N-last, which a restart resumes from; N counts from 0. Source: NVIDIA-NeMo/NeMo, r2.5.0.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

COUNTS: Final = (
    *("steps", "global_batch_size", "micro_batch_size", "sequence_length", "warmup_steps", "seed"),
    *("tensor_parallel", "pipeline_parallel", "context_parallel"),
    *("checkpoint_every", "log_every", "eval_every", "eval_steps"),
)
RATES: Final = ("learning_rate", "min_learning_rate", "weight_decay", "beta1", "beta2", "grad_clip")
SWITCHES: Final = ("sequence_parallel", "distributed_optimizer", "recompute")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the settings; without a data set, tokens are made up."""
    parser = argparse.ArgumentParser(description="Train Llama 3.1 8B with NeMo 2.")
    parser.add_argument("--output_dir", type=Path, required=True)
    for name in COUNTS + RATES:
        parser.add_argument(f"--{name}", type=int if name in COUNTS else float, required=True)
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("dataset", "tokenizer", "weights"):
        parser.add_argument(f"--{name}", default="")
    return parser.parse_args(argv)


def can_resume(checkpoints: Path) -> bool:
    """Say whether a newest checkpoint is whole: NeMo would end, not begin, where none is."""
    newest = (path for path in checkpoints.glob("*-last") if path.is_dir())
    return any(not path.with_name(f"{path.name}-unfinished").exists() for path in newest)


def train(asked: argparse.Namespace) -> None:
    """Train, from the newest checkpoint where there is one."""
    from nemo import lightning as nl
    from nemo.collections import llm

    data = _data(asked)
    config = llm.Llama31Config8B(seq_length=asked.sequence_length)
    if asked.recompute:
        config.recompute_granularity, config.recompute_method = "full", "uniform"
        config.recompute_num_layers = 1
    checkpoints = nl.ModelCheckpoint(
        monitor="reduced_train_loss",
        filename="{reduced_train_loss:.4f}-{step}",
        every_n_train_steps=asked.checkpoint_every,
        save_top_k=3,
        save_last=True,
        save_optim_on_train_end=True,
        always_save_context=bool(asked.dataset),  # made-up tokens have no tokenizer to keep
        save_context_on_train_end=False,
    )
    found = can_resume(asked.output_dir / "checkpoints")
    resume = nl.AutoResume(resume_if_exists=found, resume_ignore_no_checkpoint=True)
    if asked.weights:
        resume.restore_config = nl.RestoreConfig(path=asked.weights, load_artifacts=False)
    llm.train(
        model=llm.LlamaModel(config, tokenizer=data.tokenizer),
        data=data,
        trainer=_trainer(asked),
        log=nl.NeMoLogger(explicit_log_dir=str(asked.output_dir), ckpt=checkpoints),
        resume=resume,
        optim=_optimizer(asked),
        tokenizer="data",
    )


def _data(asked: argparse.Namespace) -> Any:
    from nemo.collections import llm
    from nemo.collections.common.tokenizers.huggingface.auto_tokenizer import AutoTokenizer
    from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer

    sizes = {name: getattr(asked, name) for name in ("global_batch_size", "micro_batch_size")}
    sizes["seq_length"] = asked.sequence_length
    if not asked.dataset:
        return llm.MockDataModule(**sizes, tokenizer=NullTokenizer(128_255))  # and one id more
    return llm.PreTrainingDataModule(
        [asked.dataset],
        **sizes,
        split="98,2,0" if asked.eval_every else "100,0,0",  # of documents
        index_mapping_dir=str(asked.output_dir.parent / "index-cache"),
        tokenizer=AutoTokenizer(asked.tokenizer),
        seed=asked.seed,
    )


def _trainer(asked: argparse.Namespace) -> Any:
    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from nemo import lightning as nl
    from nemo.utils.exp_manager import TimingCallback

    bf16, on_this_node = torch.bfloat16, int(os.environ["LOCAL_WORLD_SIZE"])
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=True)
    ddp.use_distributed_optimizer = ddp.overlap_param_gather = asked.distributed_optimizer
    return nl.Trainer(
        devices=on_this_node,
        num_nodes=int(os.environ["WORLD_SIZE"]) // on_this_node,
        max_steps=asked.steps,
        # Not within an epoch: after a restart, fewer batches may be left of it than that.
        check_val_every_n_epoch=None,
        val_check_interval=asked.eval_every or asked.steps,
        limit_val_batches=asked.eval_steps if asked.eval_every else 0,
        limit_test_batches=0,
        logger=False,
        use_distributed_sampler=False,
        callbacks=[TimingCallback()],
        plugins=nl.MegatronMixedPrecision("bf16-mixed", params_dtype=bf16, pipeline_dtype=bf16),
        strategy=nl.MegatronStrategy(
            tensor_model_parallel_size=asked.tensor_parallel,
            pipeline_model_parallel_size=asked.pipeline_parallel,
            context_parallel_size=asked.context_parallel,
            sequence_parallel=asked.sequence_parallel,
            pipeline_dtype=bf16,
            progress_interval=asked.log_every,
            ddp=ddp,
        ),
    )


def _optimizer(asked: argparse.Namespace) -> Any:
    from megatron.core.optimizer import OptimizerConfig
    from nemo.lightning.pytorch.optim import CosineAnnealingScheduler, MegatronOptimizerModule

    config = OptimizerConfig(optimizer="adam", bf16=True, lr=asked.learning_rate)
    config.weight_decay, config.clip_grad = asked.weight_decay, asked.grad_clip
    config.adam_beta1, config.adam_beta2 = asked.beta1, asked.beta2
    config.use_distributed_optimizer = asked.distributed_optimizer
    # Its own defaults are a warm-up of 750 steps, and 80,000 steps at the end without a change.
    rate = CosineAnnealingScheduler(asked.steps, asked.warmup_steps, 0, asked.min_learning_rate)
    return MegatronOptimizerModule(config, lr_scheduler=rate)


if __name__ == "__main__":
    train(parse(sys.argv[1:]))
