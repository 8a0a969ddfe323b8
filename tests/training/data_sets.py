"""Small data sets whose contents tell which document or sample a token came from."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from stationmaster.domain.catalogue.entries import TINY_LLAMA
from stationmaster.domain.catalogue.training_config import LanguageTraining
from training.data.shards import (
    PackedData,
    Packing,
    PackPlan,
    Position,
    ShardWriter,
    verify_share,
)
from training.data.tokenizers import END_OF_TEXT, TokenizerFile, describe_tokenizer

FORMATS = (
    "rows.jsonl",
    "rows.json.gz",
    "rows.jsonl.bz2",
    "rows.ndjson.xz",
    "rows.csv.zst",
    "rows.csv",
    "rows.tsv.lz4",
    "rows.parquet",
    "rows.arrow",
    "stream.arrow",
)
_COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
    ".lz4": lambda data: pyarrow.compress(data, "lz4", asbytes=True),
}


def language_training(**changes: Any) -> LanguageTraining:
    """The keys of a recipe, with a seed of 1 and whatever else is said."""
    training = TINY_LLAMA.training
    assert isinstance(training, LanguageTraining)
    return training.model_copy(update={"seed": 1, **changes})


def write_rows(path: Path, texts: Sequence[str]) -> Path:
    """A file of rows with a column `text`, in the form that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        table = pyarrow.table({"id": range(len(texts)), "text": list(texts)})
        parquet.write_table(table, path, row_group_size=3)
    elif path.suffix == ".arrow":
        table = pyarrow.table({"id": range(len(texts)), "text": list(texts)})
        form = pyarrow.ipc.new_stream if path.stem == "stream" else pyarrow.ipc.new_file
        with form(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    else:
        out = io.StringIO(newline="")
        if ".csv" in path.name or ".tsv" in path.name:
            delimiter = "\t" if ".tsv" in path.name else ","
            writer = csv.writer(out, delimiter=delimiter)
            writer.writerows([["id", "text"], *enumerate(texts)])
        else:
            out.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        path.write_bytes(_COMPRESS.get(path.suffix, bytes)(out.getvalue().encode()))
    return path


def word_tokenizer(
    directory: Path, words: Sequence[str], *, special: Sequence[str], begin: str = ""
) -> Path:
    """Splits at spaces; each word is the token of its place, and the first also what is unknown."""
    ids = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(special))
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
        )
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory / "tokenizer.json"


def number_tokenizer(directory: Path, *, vocab_size: int = 4096) -> TokenizerFile:
    """The word n is the token n; <|endoftext|> is the last id."""
    words = [str(n) for n in range(vocab_size - 1)]
    return describe_tokenizer(word_tokenizer(directory, words, special=[END_OF_TEXT]))


def numbered(document: int, *, length: int) -> str:
    """A document that is the same number over and over."""
    return " ".join([str(document)] * length)


def pack_ids(
    directory: Path,
    ids: Sequence[int],
    *,
    shard_tokens: int,
    end_id: int = 0,
    vocab_size: int = 2**20,
) -> PackedData:
    """A packed data set of exactly these ids."""
    directory.mkdir(parents=True, exist_ok=True)
    plan = PackPlan(
        dataset="ids",
        revision="",
        corpus="",
        tokenizer="none",
        tokenizer_sha256="",
        vocab_size=vocab_size,
        begin_ids=(),
        end_id=end_id,
        dtype="uint32",
        shard_tokens=shard_tokens,
    )
    writer = ShardWriter(directory, Packing(plan=plan))
    writer.add(np.asarray(ids, dtype=np.uint32), at=Position())
    return writer.finish()


def verify_packed(data: PackedData) -> None:
    """Compare every file with its hash, as a rank that is alone does before it trains."""
    stamps = data.directory.parent / "stamps"
    verify_share(data, vocab_size=2**32, rank=0, world_size=1, stamps=stamps)
