"""Text to packed tokens, on any number of cores, and again from where a killed start left off.

The bytes written depend on the plan alone: not on the number of workers, and not on how often the
packing was killed. This module must not import torch.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from stationmaster.domain.errors import BadParameter, NotPossibleNow, PermanentError
from training.data.corpus import Corpus
from training.data.rows import read_documents
from training.data.shards import (
    MANIFEST,
    PACKING,
    PackedData,
    Packing,
    PackPlan,
    Position,
    ShardWriter,
    read_packed,
)
from training.data.shares import end_with_parent
from training.data.tokenizers import TextTokenizer, TokenIds, TokenizerFile, copy_tokenizer
from training.files import locked, write_json
from training.repositories import TOKENIZER_FILES

DEFAULT_SHARD_TOKENS: Final = 128 * 2**20
"""256 MiB a file of uint16: a few seconds to write, and seldom a sequence that spans two."""

# A tenth of a second's work for a core; twice as many of these as workers are read ahead.
_BATCH_CHARACTERS: Final = 500_000
_BATCH_DOCUMENTS: Final = 1024
_REPORT_EVERY_S: Final = 5.0

Batch = tuple[list[Position], list[str]]

logger = logging.getLogger(__name__)


def make_plan(
    corpus: Corpus, tokenizer: TokenizerFile, *, spec: str, shard_tokens: int
) -> PackPlan:
    """Plan what will be written; `spec` is the tokenizer as it was asked for."""
    return PackPlan(
        dataset=corpus.dataset,
        revision=corpus.revision,
        corpus=corpus.identity,
        tokenizer=spec,
        tokenizer_sha256=tokenizer.identity,
        vocab_size=tokenizer.vocab_size,
        begin_ids=tokenizer.begin_ids,
        end_id=tokenizer.end_id,
        dtype="uint16" if tokenizer.dtype.itemsize == 2 else "uint32",
        shard_tokens=shard_tokens,
    )


def unfinished_packing(directory: Path) -> Packing | None:
    """Find what an earlier start was packing into a directory, if it did not end."""
    path = directory / PACKING
    return Packing.model_validate_json(path.read_bytes()) if path.is_file() else None


def pack(
    corpus: Corpus,
    tokenizer: TokenizerFile,
    plan: PackPlan,
    *,
    directory: Path,
    workers: int = 1,
    wait: bool = False,
    may_be_empty: bool = False,
) -> PackedData:
    """Write a packed data set, or the rest of one, or return the one that is there.

    With `wait`, a process that finds another at work waits for its result. A part of a larger data
    set `may_be_empty`.

    Raises:
        BadParameter: the directory holds something else, or the data set holds no text.
        NotPossibleNow: another process is packing into the directory.
        PermanentError: reading failed for good; a restart continues the packing.
    """
    with locked(directory / ".lock", wait=wait) as is_alone:
        if not is_alone:
            raise NotPossibleNow(f"another process is packing into {directory}")
        if (directory / MANIFEST).exists():
            packed = read_packed(directory)
            _check_same(packed.manifest.plan, plan, directory=directory)
            return packed
        packing = unfinished_packing(directory)
        if packing is None:
            _check_empty(directory)
            packing = Packing(plan=plan)
            copy_tokenizer(tokenizer.path, directory)
            write_json(directory / PACKING, packing.model_dump(mode="json"))
        else:
            _check_same(packing.plan, plan, directory=directory)
            logger.info("continuing after %d files", len(packing.shards))
        return _write(
            corpus,
            tokenizer,
            packing,
            directory=directory,
            workers=workers,
            may_be_empty=may_be_empty,
        )


def _write(
    corpus: Corpus,
    tokenizer: TokenizerFile,
    packing: Packing,
    *,
    directory: Path,
    workers: int,
    may_be_empty: bool,
) -> PackedData:
    writer = ShardWriter(directory, packing)
    report = _reporter(writer)
    resumed = packing.position
    batches = _batches(_documents(corpus, since=resumed))
    for positions, encoded in _encode(batches, tokenizer, workers=workers):
        for at, ids in zip(positions, encoded, strict=True):
            if (at.file, at.row) == (resumed.file, resumed.row) and resumed.offset:
                writer.add(ids[resumed.offset :], at=resumed, begins=False)
            else:
                writer.add(ids, at=at)
        report(False)
    if not writer.num_tokens and not may_be_empty:
        raise BadParameter(f'dataset="{corpus.dataset}" holds no text')
    packed = writer.finish()
    report(True)
    return packed


def _documents(corpus: Corpus, *, since: Position) -> Iterator[tuple[Position, str]]:
    """Yield every document with text, from a position on, its own document included."""
    for number in range(since.file, len(corpus.files)):
        first = since.row if number == since.file else 0
        texts = read_documents(corpus.files[number], start=first)
        for row, text in enumerate(texts, start=first):
            if text:
                yield Position(file=number, row=row), text


def _batches(documents: Iterable[tuple[Position, str]]) -> Iterator[Batch]:
    positions: list[Position] = []
    texts: list[str] = []
    num_characters = 0
    for position, text in documents:
        positions.append(position)
        texts.append(text)
        num_characters += len(text)
        if num_characters >= _BATCH_CHARACTERS or len(texts) >= _BATCH_DOCUMENTS:
            yield positions, texts
            positions, texts, num_characters = [], [], 0
    if texts:
        yield positions, texts


def _encode(
    batches: Iterator[Batch], tokenizer: TokenizerFile, *, workers: int
) -> Iterator[tuple[list[Position], list[TokenIds]]]:
    """Encode each batch, in order; with several workers, in processes of their own."""
    if workers == 1:
        encoder = TextTokenizer(tokenizer)
        for positions, texts in batches:
            yield positions, encoder.encode_documents(texts)
        return
    with ProcessPoolExecutor(
        workers,
        # A forked process would inherit the threads' locks of libraries that start threads.
        mp_context=get_context("spawn"),
        initializer=_start_worker,
        initargs=(tokenizer,),
    ) as pool:
        waiting: deque[tuple[list[Position], Future[list[TokenIds]]]] = deque()
        try:
            # Twice as many as workers: none waits for the reading of the next.
            for positions, texts in itertools.islice(batches, 2 * workers):
                waiting.append((positions, pool.submit(_encode_in_worker, texts)))
            while waiting:
                positions, future = waiting.popleft()
                yield positions, future.result()
                for following, texts in itertools.islice(batches, 1):
                    waiting.append((following, pool.submit(_encode_in_worker, texts)))
        except BrokenProcessPool as exc:
            raise PermanentError(
                "a packing worker was killed, most often for lack of memory; start again with "
                "fewer --workers to continue"
            ) from exc
        finally:
            for _, future in waiting:
                future.cancel()


_encoders: list[TextTokenizer] = []
"""A worker's one tokenizer, which costs too much to send with every batch."""


def _start_worker(tokenizer: TokenizerFile) -> None:
    end_with_parent()
    _encoders.append(TextTokenizer(tokenizer))


def _encode_in_worker(texts: list[str]) -> list[TokenIds]:
    return _encoders[0].encode_documents(texts)


def _reporter(writer: ShardWriter) -> Callable[[bool], None]:
    """Make a call that logs a line every few seconds, or at once, with the rate since now."""
    began = logged = time.monotonic()
    before = writer.num_tokens

    def report(at_once: bool) -> None:
        nonlocal logged
        now = time.monotonic()
        if now - logged < _REPORT_EVERY_S and not at_once:
            return
        logged = now
        logger.info(
            "packed %.1f M tokens in %d whole files, %.2f M tokens/s",
            writer.num_tokens / 1e6,
            writer.num_shards,
            (writer.num_tokens - before) / max(now - began, 1e-9) / 1e6,
        )

    return report


def _check_same(there: PackPlan, asked: PackPlan, *, directory: Path) -> None:
    differing = [
        f"{name} {getattr(there, name)}, asked for is {getattr(asked, name)}"
        for name in PackPlan.model_fields
        if getattr(there, name) != getattr(asked, name)
    ]
    if differing:
        raise BadParameter(
            f"{directory} holds another packing: {'; '.join(differing)[:600]}; give another "
            "--output-dir, or remove this one"
        )


def _check_empty(directory: Path) -> None:
    found = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    if not set(found) <= set(TOKENIZER_FILES):
        raise BadParameter(
            f"{directory} holds {found[0]} and no packed data set; give a new or empty directory"
        )
