"""Text to packed tokens, and packed tokens to batches, on one core.

CPU time is what counts: both are plain computation, and the machine may do other things meanwhile.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from bench.figures import Figure
from stationmaster.domain.catalogue.entries import TINY_LLAMA
from stationmaster.domain.catalogue.training_config import LanguageTraining
from training.data.corpus import PYTHON_CODE
from training.data.corpus_lookup import find_corpus, read_corpus
from training.data.pack import DEFAULT_SHARD_TOKENS, make_plan, pack
from training.data.packed import PackedSource
from training.data.shards import PackedData, Packing, Position, ShardWriter
from training.data.tokenizers import prepare_tokenizer

ROUNDS: Final = 3
_VOCABULARY: Final = 4096
_LOADED_TOKENS: Final = 20_000_000


def measure_data() -> list[Figure]:
    """Return the tokens a second on a core of packing and of loading."""
    with tempfile.TemporaryDirectory(prefix="bench-data-") as name:
        directory = Path(name)
        corpus = find_corpus(PYTHON_CODE)
        tokenizer = prepare_tokenizer(
            "bpe",
            vocab_size=_VOCABULARY,
            cache_dir=directory,
            texts=lambda: read_corpus(corpus),
        )
        plan = make_plan(corpus, tokenizer, spec="bpe", shard_tokens=DEFAULT_SHARD_TOKENS)
        rates = []
        for turn in range(ROUNDS):
            began = time.process_time()
            packed = pack(corpus, tokenizer, plan, directory=directory / f"packed-{turn}")
            rates.append(packed.manifest.num_tokens / (time.process_time() - began))
        # Random ids: the loader does not look at them, and this many would take long to make.
        (directory / "random").mkdir()
        writer = ShardWriter(directory / "random", Packing(plan=plan))
        ids = np.random.default_rng(0).integers(0, _VOCABULARY, _LOADED_TOKENS, dtype=np.uint16)
        writer.add(ids, at=Position())
        loaded = writer.finish()
        return [
            Figure(
                name="data tokenise and pack",
                value=statistics.median(rates),
                unit="tokens/s",
                at_least=1e6,
                note=f"median of {ROUNDS} x {packed.manifest.num_tokens:,} tokens, one process",
            ),
            _loading(loaded, sequence_length=128, sequences=20_000),
            _loading(loaded, sequence_length=4096, sequences=2_000),
        ]


def _loading(data: PackedData, *, sequence_length: int, sequences: int) -> Figure:
    batch, training = 16, TINY_LLAMA.training
    assert isinstance(training, LanguageTraining)
    sizes = {"sequence_length": sequence_length, "global_batch_size": batch}
    source = PackedSource(
        data,
        training.model_copy(update=sizes | {"micro_batch_size": batch, "eval_samples": 0}),
        rank=0,
        world_size=1,
    )
    rates = []
    for _ in range(ROUNDS + 1):
        began, num_tokens = time.process_time(), 0
        for first in range(0, sequences, batch):
            num_tokens += sum(one.inputs.numel() for one in source.micro_batches(first))
        rates.append(num_tokens / (time.process_time() - began))
    return Figure(
        name=f"data loader, sequences of {sequence_length}",
        value=statistics.median(rates[1:]),
        unit="tokens/s",
        at_least=100e6,
        note=f"median of {ROUNDS} x {num_tokens:,} tokens, after one not counted",
    )
