"""Tokenise a data set once, for many runs to read.

    python -m training.pack python-code --vocab-size 4096 --output-dir DIR
    python -m training.pack c4 --tokenizer meta-llama/Llama-2-7b-hf --workers 16 --output-dir DIR

Then train with dataset=DIR. Killed at any time and started again with the same arguments, it goes
on after the last whole file, and the result is the same byte for byte. Exit codes: 0 done, 1 failed
with one sentence, 2 the command line is not understood.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.full_disk import full_disk
from training.config import cache_dir_from, positive
from training.data.corpus_lookup import find_corpus, read_corpus
from training.data.pack import DEFAULT_SHARD_TOKENS, make_plan, pack, unfinished_packing
from training.data.shards import MANIFEST, PackedData, read_packed
from training.data.tokenizers import TRAINED, prepare_tokenizer


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Pack, and turn every ending into an exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s: %(message)s"
    )
    for library in ("httpx", "httpx2", "huggingface_hub", "fsspec"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        packed = _pack(arguments, environ)
    except Exception as error:
        said = full_disk(error, directory=arguments.output_dir) or error
        if not isinstance(said, StationmasterError):
            raise
        sys.stderr.write(f"{said}\n")
        return 1
    manifest = packed.manifest
    sys.stdout.write(
        f"{packed.directory}: {manifest.num_tokens:,} tokens of {manifest.num_documents:,} "
        f"documents in {len(manifest.shards)} files, sha256 {manifest.sha256}\n"
    )
    return 0


def _pack(arguments: argparse.Namespace, environ: Mapping[str, str]) -> PackedData:
    directory: Path = arguments.output_dir
    # A data set on the hub may have moved on since: what was begun is ended at the same commit.
    begun = unfinished_packing(directory)
    if (directory / MANIFEST).exists():
        revision = read_packed(directory).manifest.plan.revision
    else:
        revision = begun.plan.revision if begun else ""
    corpus = find_corpus(arguments.dataset, revision=revision)
    tokenizer = prepare_tokenizer(
        arguments.tokenizer,
        vocab_size=arguments.vocab_size,
        cache_dir=cache_dir_from(environ),
        texts=lambda: read_corpus(corpus),
    )
    plan = make_plan(
        corpus, tokenizer, spec=arguments.tokenizer, shard_tokens=arguments.shard_tokens
    )
    return pack(corpus, tokenizer, plan, directory=directory, workers=arguments.workers)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.pack",
        description="Tokenise a data set into packed shards, resumably.",
    )
    parser.add_argument(
        "dataset",
        metavar="DATASET",
        help="python-code, a directory of text, .jsonl or .parquet files, c4, or "
        "hub:ORG/NAME[/CONFIG]",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="new, or one of an interrupted packing",
    )
    parser.add_argument(
        "--tokenizer",
        default=TRAINED,
        metavar="T",
        help="ORG/MODEL on the Hugging Face hub, a path, or bpe: trained on the data "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--vocab-size",
        type=positive,
        metavar="N",
        help="entries of the model's vocabulary: trained for bpe, checked for others",
    )
    parser.add_argument(
        "--shard-tokens",
        type=positive,
        default=DEFAULT_SHARD_TOKENS,
        metavar="N",
        help="tokens a file (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=positive,
        default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        metavar="N",
        help="processes that tokenise (default: one a core)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
