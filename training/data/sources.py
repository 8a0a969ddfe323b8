"""From `dataset=` to one rank's batches: packed, streamed or instruction data.

`prepare_source` runs on every rank before torch is loaded, `open_source` when the ranks have
joined. Everything that takes long or may be refused happens in the first.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.data_files import is_table
from stationmaster.domain.errors import BadParameter, NotPossibleNow, PermanentError
from training.config import TrainerConfig
from training.data.corpus import HUB_PREFIX, SHORT_NAMES, STREAM_PREFIX, Corpus
from training.data.corpus_lookup import find_corpus, read_corpus
from training.data.pack import DEFAULT_SHARD_TOKENS, make_plan, pack
from training.data.shards import MANIFEST, PACKING, PackedData, PackPlan, read_packed, verify_share
from training.data.tokenizers import TokenizerFile, prepare_tokenizer

if TYPE_CHECKING:
    from training.data.instructions import PreparedInstructions
    from training.task import BatchSource

# About 500 M tokens, and 8 min on one core at every first start on a node.
_LARGEST_TO_PREPARE_BYTES: Final = 2 * 2**30

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedData:
    """A data set to read while training."""

    corpus: Corpus
    tokenizer: TokenizerFile


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What a language recipe learns from, brought to this machine or found on the hub."""

    data: PackedData | StreamedData | PreparedInstructions
    tokenizer: Path | None
    """The tokenizer.json that made or will make the tokens."""


Report = Callable[[str], None]


def prepare_source(config: TrainerConfig, report: Report = lambda _: None) -> PreparedData:
    """Find the data set and its tokenizer; pack the text of a small one. Loads no torch.

    Safe to call from many processes at once: one builds, the others wait for it.

    Raises:
        UserError: no such data set or tokenizer, no text, too much text, a vocabulary too large.
        PermanentError: the hub cannot be reached, or reading broke off.
    """
    recipe = config.recipe
    model, training = recipe.model, recipe.training
    assert isinstance(model, LanguageModel)
    assert isinstance(training, LanguageTraining)
    report(f"data {training.dataset}")
    if recipe.task == "finetuning":
        from training.data.instructions import prepare_instructions  # not for pre-training

        instructions = prepare_instructions(config)
        return PreparedData(data=instructions, tokenizer=instructions.tokenizer)
    dataset = training.dataset
    directory = Path(dataset)
    if (directory / MANIFEST).is_file():
        packed = _read_packed(directory, dataset=dataset, vocab_size=model.vocab_size)
        return PreparedData(data=packed, tokenizer=packed.tokenizer.path)
    if (directory / PACKING).is_file():
        raise NotPossibleNow(
            f'dataset="{dataset}" is not packed to its end; run the same python -m training.pack '
            "again, which continues where it stopped"
        )
    corpus = find_corpus(dataset)
    streamed = SHORT_NAMES.get(dataset, dataset).startswith((HUB_PREFIX, STREAM_PREFIX))
    if streamed and training.eval_samples:
        corpus.with_held_out()  # refuses a stream without anything to evaluate on
    if not streamed:
        _check_to_prepare(corpus)
    report(f"tokenizer {training.tokenizer}")
    tokenizer = prepare_tokenizer(
        training.tokenizer,
        vocab_size=model.vocab_size,
        cache_dir=config.cache_dir,
        texts=lambda: read_corpus(corpus),
    )
    if streamed:
        logger.info("streaming %s: %d files", dataset, len(corpus.files))
        streamed_data = StreamedData(corpus=corpus, tokenizer=tokenizer)
        return PreparedData(data=streamed_data, tokenizer=tokenizer.path)
    report(f"data {dataset} to be packed")
    packed = pack_in_cache(corpus, tokenizer, spec=training.tokenizer, cache_dir=config.cache_dir)
    logger.info("data ready: %d tokens in %s", packed.manifest.num_tokens, packed.directory)
    return PreparedData(data=packed, tokenizer=packed.tokenizer.path)


def verify_source(
    prepared: PreparedData, config: TrainerConfig, *, rank: int, world_size: int
) -> None:
    """Read this rank's share of packed files, whose bits may have turned since they were written.

    Raises:
        BadParameter: one is not what was packed, or holds ids outside of the model's vocabulary.
        PermanentError: one cannot be read.
    """
    model = config.recipe.model
    assert isinstance(model, LanguageModel)
    if not isinstance(prepared.data, PackedData):
        return
    try:
        verify_share(
            prepared.data,
            vocab_size=model.vocab_size,
            rank=rank,
            world_size=world_size,
            stamps=config.cache_dir / "verified",
        )
    except OSError as exc:
        raise PermanentError(
            f"{prepared.data.directory} cannot be read: {exc}; check the storage, then start again"
        ) from exc


def open_source(
    prepared: PreparedData, config: TrainerConfig, *, rank: int, world_size: int
) -> BatchSource:
    """Open one rank's part of the prepared data.

    Raises:
        BadParameter: too little data for one sequence, or too many ranks for a stream.
    """
    from training.data.packed import InstructionSource, PackedSource  # torch
    from training.data.streaming import StreamingSource

    training = config.recipe.training
    assert isinstance(training, LanguageTraining)
    match prepared.data:
        case PackedData() as packed:
            return PackedSource(packed, training, rank=rank, world_size=world_size)
        case StreamedData(corpus=corpus, tokenizer=tokenizer):
            return StreamingSource(corpus, tokenizer, training, rank=rank, world_size=world_size)
        case instructions:
            return InstructionSource(instructions, training, rank=rank, world_size=world_size)


def pack_in_cache(
    corpus: Corpus, tokenizer: TokenizerFile, *, spec: str, cache_dir: Path
) -> PackedData:
    """Pack a small data set under a name made of its contents, unless the cache has it."""
    plan = make_plan(corpus, tokenizer, spec=spec, shard_tokens=DEFAULT_SHARD_TOKENS)
    directory = cache_dir / "datasets" / _contents_key(corpus, plan)
    if (directory / MANIFEST).exists():
        return read_packed(directory)
    return pack(corpus, tokenizer, plan, directory=directory, wait=True)


def _contents_key(corpus: Corpus, plan: PackPlan) -> str:
    digest = hashlib.sha256(plan.model_dump_json().encode())
    for file in corpus.files:
        digest.update(hashlib.sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()[:24]


def _read_packed(directory: Path, *, dataset: str, vocab_size: int) -> PackedData:
    packed = read_packed(directory)
    found = packed.tokenizer.vocab_size
    if found > vocab_size:
        raise BadParameter(
            f'dataset="{dataset}" was packed with a tokenizer of {found} entries, the model\'s '
            f"vocabulary is {vocab_size}; pack it with the tokenizer that the model was made for"
        )
    return packed


def _check_to_prepare(corpus: Corpus) -> None:
    num_bytes = sum(os.path.getsize(file) for file in corpus.files)
    if num_bytes > _LARGEST_TO_PREPARE_BYTES:
        advice = "pack it once with python -m training.pack and train on the result"
        if all(map(is_table, corpus.files)):
            advice += f", or use dataset={STREAM_PREFIX}{corpus.dataset}"
        raise BadParameter(
            f'dataset="{corpus.dataset}" has {num_bytes / 2**30:.1f} GiB of text, too much to '
            f"tokenise at every start; {advice}"
        )
