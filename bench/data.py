"""Text to packed tokens, packed tokens to batches, and a stream to batches, on one core.

CPU time is what counts: all are plain computation, and the machine may do other things meanwhile.
"""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from bench.figures import AtLeast, Figure
from training.data.corpus import PYTHON_CODE, Corpus
from training.data.corpus_lookup import find_corpus
from training.data.corpus_reading import read_corpus
from training.data.pack import DEFAULT_SHARD_TOKENS, make_plan, pack
from training.data.packed import PackedSource
from training.data.shards import PackedData, Packing, Position, ShardWriter
from training.data.streaming import StreamingSource
from training.data.tokenizers import TokenizerFile, prepare_tokenizer
from training.task import BatchSource

ROUNDS: Final = 3
_VOCABULARY: Final = 4096
_LOADED_TOKENS: Final = 20_000_000
_STREAM_FILES: Final = 16
# As long as a document of a web crawl.
_DOCUMENT_CHARACTERS: Final = 2000


def measure_data() -> list[Figure]:
    """Return the tokens a second on a core of packing, of loading, and of streaming."""
    with tempfile.TemporaryDirectory(prefix="bench-data-") as name:
        directory = Path(name)
        corpus = find_corpus(PYTHON_CODE)
        tokenizer = prepare_tokenizer(
            "bpe",
            vocab_size=_VOCABULARY,
            cache_dir=directory,
            texts=lambda: read_corpus(corpus),
        )
        loaded = _random_tokens(directory / "random", corpus, tokenizer)
        return [
            _packing(directory, corpus, tokenizer),
            _loading(loaded, sequence_length=128, sequences=20_000),
            _loading(loaded, sequence_length=4096, sequences=2_000),
            _streaming(directory / "stream", corpus, tokenizer),
        ]


def _packing(directory: Path, corpus: Corpus, tokenizer: TokenizerFile) -> Figure:
    plan = make_plan(corpus, tokenizer, spec="bpe", shard_tokens=DEFAULT_SHARD_TOKENS)
    rates = []
    for turn in range(ROUNDS):
        began = time.process_time()
        packed = pack(corpus, tokenizer, plan, directory=directory / f"packed-{turn}")
        rates.append(packed.manifest.num_tokens / (time.process_time() - began))
    return Figure(
        name="data tokenise and pack",
        value=statistics.median(rates),
        unit="tokens/s",
        target=AtLeast(1e6),
        note=f"median of {ROUNDS} x {packed.manifest.num_tokens:,} tokens, one process",
    )


def _random_tokens(directory: Path, corpus: Corpus, tokenizer: TokenizerFile) -> PackedData:
    """Random ids: the loader does not look at them, and this many would take long to make."""
    directory.mkdir()
    plan = make_plan(corpus, tokenizer, spec="bpe", shard_tokens=DEFAULT_SHARD_TOKENS)
    writer = ShardWriter(directory, Packing(plan=plan))
    ids = np.random.default_rng(0).integers(0, _VOCABULARY, _LOADED_TOKENS, dtype=np.uint16)
    writer.add(ids, at=Position())
    return writer.finish()


def _loading(data: PackedData, *, sequence_length: int, sequences: int) -> Figure:
    batch = 16
    source = PackedSource(
        data,
        sequence_length=sequence_length,
        global_batch_size=batch,
        micro_batch_size=batch,
        eval_samples=0,
        seed=1,
        rank=0,
        world_size=1,
    )
    rates = [
        _rate(source, batch=batch, steps=sequences // batch, first=0) for _ in range(ROUNDS + 1)
    ]
    return Figure(
        name=f"data loader, sequences of {sequence_length}",
        value=statistics.median(rates[1:]),
        unit="tokens/s",
        target=AtLeast(100e6),
        note=f"median of {ROUNDS} x {sequences * sequence_length:,} tokens, after one not counted",
    )


def _streaming(directory: Path, corpus: Corpus, tokenizer: TokenizerFile) -> Figure:
    """Gzipped JSON lines, unpacked, tokenised and packed by the thread that reads ahead."""
    directory.mkdir()
    documents = [
        text[start : start + _DOCUMENT_CHARACTERS]
        for text in read_corpus(corpus)
        for start in range(0, len(text), _DOCUMENT_CHARACTERS)
    ]
    for number in range(_STREAM_FILES):
        rows = "".join(
            json.dumps({"text": text}) + "\n" for text in documents[number::_STREAM_FILES]
        )
        (directory / f"{number:02}.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    batch, steps = 16, 80
    source = StreamingSource(
        find_corpus(f"stream:{directory}"),
        tokenizer,
        sequence_length=512,
        global_batch_size=batch,
        micro_batch_size=batch,
        eval_samples=0,
        seed=1,
        rank=0,
        world_size=1,
    )
    rates = [
        _rate(source, batch=batch, steps=steps, first=turn * steps * batch)
        for turn in range(ROUNDS)
    ]
    return Figure(
        name="data streaming",
        value=statistics.median(rates),
        unit="tokens/s",
        target=AtLeast(0.5e6),
        note=f"median of {ROUNDS} x {steps * batch * 512:,} tokens, {_STREAM_FILES} gzipped files",
    )


def _rate(
    source: BatchSource,
    *,
    batch: int,
    steps: int,
    first: int,
    clock: Callable[[], float] = time.process_time,
) -> float:
    began, num_tokens = clock(), 0
    for step in itertools.islice(itertools.count(first, batch), steps):
        for micro_batch in source.micro_batches(step):
            num_tokens += micro_batch.inputs.numel()
    return num_tokens / (clock() - began)
