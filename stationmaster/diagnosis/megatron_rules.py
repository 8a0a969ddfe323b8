"""Rules for Megatron-LM: when it cannot start, or starts something else than was meant."""

from __future__ import annotations

from typing import Final

from stationmaster.diagnosis.rules import Rank, Rule, Severity

_MEGATRON: Final = "Megatron-LM {}"

RULES: Final = (
    Rule(
        id="megatron-batch",
        pattern=r"global batch size \((?P<batch>\d+)\) is not divisible by micro batch size "
        r"\((?P<micro>\d+)\) times data parallel size \((?P<ranks>\d+)\)",
        diagnosis="the global batch of {batch} is no multiple of {micro} x {ranks}: micro batch "
        "times data-parallel ranks",
        remedy="pass --global-batch-size as a multiple of {micro} x {ranks} in command=",
        source=_MEGATRON.format("core/num_microbatches_calculator.py"),
    ),
    Rule(
        id="megatron-heads",
        pattern=r"(?P<what>num_attention_heads|num_query_groups) \((?P<heads>\d+)\) must be a "
        r"multiple of tensor_model_parallel_size \((?P<tp>\d+)\)",
        diagnosis="{what}, {heads}, cannot be divided over {tp} tensor-parallel ranks",
        remedy="pass a --tensor-model-parallel-size that divides {heads} in command=",
        source=_MEGATRON.format("core/transformer/transformer_config.py"),
    ),
    Rule(
        id="megatron-world",
        pattern=r"world size \((?P<world>\d+)\) is not divisible by total_model_size",
        diagnosis="{world} processes cannot be divided by tensor x pipeline x context parallel "
        "size",
        remedy="start it again with another nodes=, or pass parallel sizes whose product divides "
        "{world} in command=",
        source=_MEGATRON.format("training/arguments.py"),
    ),
    Rule(
        id="megatron-connections",
        pattern=r"requires setting the environment variable.{0,8}CUDA_DEVICE_MAX_CONNECTIONS to 1"
        r"(?! while)",
        diagnosis="Megatron's tensor and sequence parallelism needs CUDA_DEVICE_MAX_CONNECTIONS=1",
        remedy="set CUDA_DEVICE_MAX_CONNECTIONS=1 in command= (env CUDA_DEVICE_MAX_CONNECTIONS=1 "
        "torchrun ...); `stationmaster lint FILE` checks a manifest for it",
        source=_MEGATRON.format("training/arguments.py"),
    ),
    Rule(
        id="megatron-data",
        pattern=r"One or both of the \.idx and \.bin files cannot be found"
        r"|bad header, cannot read: (?P<file>\S{1,200})",
        diagnosis="the prepared data is not there, or is no index of Megatron's",
        remedy="give --data-path the prefix without .bin and .idx, and prepare the data again with "
        "tools/preprocess_data.py where it is damaged",
        source=_MEGATRON.format("core/datasets/indexed_dataset.py"),
    ),
    Rule(
        id="megatron-helpers",
        pattern=r"Failed to compile the C\+\+ dataset helper functions"
        r"|(?:No module named|cannot import name) '[\w.]*helpers(?:_cpp)?'",
        diagnosis="Megatron's data helpers are not compiled, or several nodes compiled them at "
        "once",
        remedy="compile them when the image is built (make -C megatron/core/datasets), then start "
        "it again with that image=",
        source=_MEGATRON.format("core/datasets/utils.py"),
    ),
    Rule(
        id="megatron-random-start",
        pattern=r"will not load any checkpoints and will start from\s+random",
        rank=Rank.NOTE,
        severity=Severity.WARNING,
        diagnosis="Megatron found no checkpoint to load, so training starts from random weights",
        remedy="where it was to continue or to start from a base model, `/train stop {run}` and "
        "give --load a directory with latest_checkpointed_iteration.txt",
        source=_MEGATRON.format("training/checkpointing.py"),
    ),
)
