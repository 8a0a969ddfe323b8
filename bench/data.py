"""Text to packed tokens, and packed tokens to batches, on one core.

CPU time is what counts: both are plain computation, and the machine may do other things meanwhile.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from bench.figures import AtLeast, Figure
from training.data.corpus import PYTHON_STDLIB, TokenShard, list_files, prepare_dataset
from training.data.packed import BatchLoader

ROUNDS: Final = 3
_VOCABULARY: Final = 4096
_SHARD_TOKENS: Final = 20_000_000


def measure_data() -> list[Figure]:
    """Tokens a second on a core of packing, and of loading short and long sequences."""
    with tempfile.TemporaryDirectory(prefix="bench-data-") as directory:
        shard = _large_shard(Path(directory))
        return [
            _packing(Path(directory)),
            _loading(shard, sequence_length=128, sequences=20_000),
            _loading(shard, sequence_length=4096, sequences=2_000),
        ]


def _packing(directory: Path) -> Figure:
    """What the later text costs: all of it less its first quarter.

    The tokenizer is trained on the same first megabyte both times, so that this drops out.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    files = list_files(PYTHON_STDLIB)
    whole, quarter = directory / "whole", directory / "quarter"
    for target, chosen in ((whole, files), (quarter, files[: len(files) // 4])):
        target.mkdir()
        for number, file in enumerate(chosen):
            shutil.copyfile(file, target / f"{number:05d}.txt")
    rates = []
    for turn in range(ROUNDS):
        all_tokens, all_s = _prepare(whole, directory / f"cache-{turn}")
        few_tokens, few_s = _prepare(quarter, directory / f"cache-{turn}")
        rates.append((all_tokens - few_tokens) / (all_s - few_s))
    return Figure(
        name="data tokenise and pack",
        value=statistics.median(rates),
        unit="tokens/s",
        held=AtLeast(1e6),
        note=f"median of {ROUNDS}; {all_tokens:,} tokens, {all_s:.1f} s with the tokenizer's "
        "training",
    )


def _prepare(text: Path, cache: Path) -> tuple[int, float]:
    began = time.process_time()
    shard = prepare_dataset(str(text), vocab_size=_VOCABULARY, cache_dir=cache)
    return shard.num_tokens, time.process_time() - began


def _large_shard(directory: Path) -> TokenShard:
    """Random ids: the loader does not look at them, and this many would take long to make."""
    path = directory / "tokens.bin"
    ids = np.random.default_rng(0).integers(0, _VOCABULARY, _SHARD_TOKENS, dtype=np.uint16)
    path.write_bytes(ids.tobytes())
    return TokenShard(
        tokens_path=path,
        num_tokens=_SHARD_TOKENS,
        vocab_size=_VOCABULARY,
        dtype="uint16",
        sha256="",
    )


def _loading(shard: TokenShard, *, sequence_length: int, sequences: int) -> Figure:
    batch = 16
    loader = BatchLoader(
        shard,
        sequence_length=sequence_length,
        global_batch_size=batch,
        micro_batch_tokens=batch * sequence_length,
        seed=1,
        rank=0,
        world_size=1,
    )
    rates = []
    for _ in range(ROUNDS + 1):
        began = time.process_time()
        for start in range(0, sequences, batch):
            for _micro_batch in loader.micro_batches(start):
                pass
        rates.append(sequences * sequence_length / (time.process_time() - began))
    return Figure(
        name=f"data loader, sequences of {sequence_length}",
        value=statistics.median(rates[1:]),
        unit="tokens/s",
        held=AtLeast(100e6),
        note=f"median of {ROUNDS} x {sequences * sequence_length:,} tokens, after one not counted",
    )
