"""Text streamed while training: tokenised and packed in the background, exactly resumable.

A stream is read in lanes. Their number depends on the batch alone: row j of every step's batch
comes from lane j % lanes, and a rank serves the lanes whose number is its own modulo the number of
ranks. Each lane has its own part of the files, in its own seeded order, and its own position; no
two read the same document. The positions are the checkpoint: a run that continues with more or
fewer ranks deals the same lanes out again, and loses and repeats nothing.

There is no shuffle buffer, because what it holds could not be saved: the files are shuffled, and a
batch mixes all lanes. A stream of the `datasets` library is not used: its state depends on the
number of readers.

Shape legend: B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import BadParameter
from training.data.corpus import Corpus
from training.data.corpus_lookup import find_corpus
from training.data.order import SampleOrder, micro_batch_shape
from training.data.packed import apart, as_batch
from training.data.rows import read_documents
from training.data.tokenizers import TextTokenizer, TokenIds, TokenizerFile
from training.task import Batch, DataState

_MAX_LANES: Final = 512
"""Enough for 64 nodes of 8 GPUs; each lane has a file open."""
_DOCUMENTS_AT_ONCE: Final = 8
_STEPS_AHEAD: Final = 2

logger = logging.getLogger(__name__)


class LanePosition(NamedTuple):
    """The first token that a lane has not given out as an input."""

    file: int
    """The file, counted over the whole run: a lane's files come again in each of its epochs."""
    row: int
    offset: int
    """The tokens of that row's document before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneShare:
    """The rows of `files` that belong to one of `parts` parts."""

    files: tuple[str, ...]
    part: int
    parts: int

    def has(self, row: int) -> bool:
        """Say whether a row of each file belongs to this part; every row belongs to one.

        Spread by the golden ratio, which deals evenly whatever the rows' own pattern, such as every
        second being empty.
        """
        return (row * 0x9E3779B9 % 2**32) * self.parts >> 32 == self.part


def num_lanes(global_batch_size: int) -> int:
    """Return the largest divisor of the batch that is not above the most lanes."""
    return max(
        n for n in range(1, min(_MAX_LANES, global_batch_size) + 1) if global_batch_size % n == 0
    )


def lane_share(files: tuple[str, ...], *, lane: int, lanes: int, seed: int) -> LaneShare:
    """Give a lane its part of the files: some, or where there are fewer files, rows of one."""
    order = SampleOrder(num_samples=len(files), seed=seed).indices(range(len(files)))
    if len(files) >= lanes:
        return LaneShare(files=tuple(files[i] for i in order[lane::lanes]), part=0, parts=1)
    number = lane % len(files)
    return LaneShare(
        files=(files[order[number]],),
        part=lane // len(files),
        parts=len(range(number, lanes, len(files))),
    )


class Lane:
    """The sequences of one share, from a position on, without end."""

    def __init__(
        self,
        share: LaneShare,
        tokenizer: TextTokenizer,
        training: LanguageTraining,
        *,
        position: LanePosition,
    ) -> None:
        self.position = position
        self._share = share
        self._tokenizer = tokenizer
        self._sequence_length = training.sequence_length
        self._order = SampleOrder(num_samples=len(share.files), seed=training.seed)
        self._documents = self._read(position)
        self._buffer: deque[tuple[LanePosition, TokenIds]] = deque()
        self._buffered = -position.offset

    def next_sequence(self) -> npt.NDArray[np.int64]:
        """Return the next T + 1 tokens; the last is the next sequence's first."""
        length = self._sequence_length
        while self._buffered <= length:
            self._fill()
        row_T = np.empty(length + 1, dtype=np.int64)
        filled, offset = 0, self.position.offset
        while filled <= length:
            at, ids = self._buffer[0]
            part = ids[offset : offset + length + 1 - filled]
            row_T[filled : filled + len(part)] = part
            filled += len(part)
            offset += len(part)
            if filled <= length:
                self._buffer.popleft()
                offset = 0
        self.position = LanePosition(at.file, at.row, offset - 1)
        self._buffered -= length
        return row_T

    def _fill(self) -> None:
        chunk = [next(self._documents) for _ in range(_DOCUMENTS_AT_ONCE)]
        encoded = self._tokenizer.encode_documents([text for _, text in chunk])
        for (at, _), ids in zip(chunk, encoded, strict=True):
            self._buffer.append((at, ids))
            self._buffered += len(ids)

    def _read(self, since: LanePosition) -> Iterator[tuple[LanePosition, str]]:
        """Yield the lane's documents with text, its files in another order every time round."""
        share = self._share
        file, row = since.file, since.row
        empty_files = 0
        while True:
            name = share.files[self._order.index(file)]
            empty_files += row == 0
            texts = read_documents(name, start=row)
            for number, text in enumerate(texts, start=row):
                if text and share.has(number):
                    empty_files = 0
                    yield LanePosition(file, number, 0), text
            if empty_files == len(share.files):
                raise BadParameter(
                    f"part {share.part + 1} of {share.parts} of {name} holds no text: the stream "
                    "has too few documents for its lanes; pack the data set with python -m "
                    "training.pack, or use a smaller global_batch_size"
                )
            file, row = file + 1, 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A rank's rows of one step, (B, T + 1), and where its lanes are after it."""

    rows: npt.NDArray[np.int64]
    positions: dict[int, LanePosition]


class StreamingSource:
    """A rank's part of a stream; a `training.task.BatchSource`."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: TokenizerFile,
        training: LanguageTraining,
        *,
        rank: int,
        world_size: int,
    ) -> None:
        self.samples_per_epoch = None
        global_batch_size = training.global_batch_size
        self._document_end = tokenizer.end_id if training.document_mask else None
        self._lanes = num_lanes(global_batch_size)
        if world_size > self._lanes:
            raise BadParameter(
                f"a stream with global_batch_size={global_batch_size} feeds at most {self._lanes} "
                f"ranks, not {world_size}; use a multiple of {world_size}, or pack the data set "
                "with python -m training.pack"
            )
        self._corpus = corpus.with_held_out() if training.eval_samples else corpus
        self._tokenizer = tokenizer
        self._training = training
        self._rank = rank
        self._world_size = world_size
        self._own_lanes = range(rank, self._lanes, world_size)
        # Row j's lane is j % lanes, and lanes divides the batch: every lane has as many rows.
        self._rows_of_lane = global_batch_size // self._lanes
        most_rows = -(-self._lanes // world_size) * self._rows_of_lane
        self.num_micro_batches, self.micro_batch_size = micro_batch_shape(
            most_rows, micro_batch_size=training.micro_batch_size
        )
        self.identity = f"stream {corpus.identity} {tokenizer.identity} {tokenizer.end_id}"
        self._positions = {lane: LanePosition(0, 0, 0) for lane in self._own_lanes}
        self._next_sample: int | None = 0
        self._ahead: _Ahead | None = None
        self._evaluation_BT: npt.NDArray[np.int64] | None = None

    def micro_batches(self, samples_seen: int) -> Iterator[Batch]:
        """Yield the micro-batches of the next step; a stream knows no other order than its own."""
        if self._next_sample not in (samples_seen, None):
            raise ValueError(f"the stream is at sample {self._next_sample}, not {samples_seen}")
        if self._ahead is None:
            self._ahead = _Ahead(self._steps())
        step = self._ahead.next_step()
        self._positions = step.positions
        self._next_sample = samples_seen + self._training.global_batch_size
        yield from self._in_micro_batches(step.rows, self.num_micro_batches)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield this rank's part of the first sequences of the held-out files."""
        if not self._training.eval_samples:
            return
        if self._evaluation_BT is None:
            self._evaluation_BT = self._read_held_out()
        num_samples = len(self._evaluation_BT)
        most_rows = -(-num_samples // self._world_size)
        number = -(-most_rows // self.micro_batch_size)
        yield from self._in_micro_batches(
            self._evaluation_BT[self._rank :: self._world_size], number
        )

    def facts(self) -> Mapping[str, str | int]:
        """Return files and lanes, and the commit that is read, where there is one."""
        facts: dict[str, str | int] = {
            "dataset_files": len(self._corpus.files),
            "lanes": self._lanes,
        }
        return facts | ({"dataset_revision": self._corpus.revision} if self._corpus.on_hub else {})

    def state(self) -> DataState:
        """Return each own lane's position as a tensor (3,) int64, and the commit that is read."""
        positions = {
            _key(lane): torch.tensor(position, dtype=torch.int64)
            for lane, position in self._positions.items()
        }
        return {"revision": self._corpus.revision, **positions}

    def restore(self, state: DataState) -> None:
        """Continue from the own lanes' positions, at the commit they were read at.

        Raises:
            BadParameter: that commit is gone from the hub.
            PermanentError: the hub cannot be reached.
        """
        if state["revision"] != self._corpus.revision:
            found = find_corpus(self._corpus.dataset, revision=str(state["revision"]))
            self._corpus = found.with_held_out() if self._training.eval_samples else found
            self._evaluation_BT = None
        self._positions = {
            lane: LanePosition(*(int(value) for value in state[_key(lane)]))
            for lane in self._own_lanes
        }
        self._next_sample = None
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None

    def _steps(self) -> Iterator[_Step]:
        """Yield this rank's rows of every step from the positions on, without looking at self."""
        tokenizer = TextTokenizer(self._tokenizer)
        lanes = {
            lane: Lane(
                lane_share(
                    self._corpus.files, lane=lane, lanes=self._lanes, seed=self._training.seed
                ),
                tokenizer,
                self._training,
                position=position,
            )
            for lane, position in self._positions.items()
        }
        return _steps(lanes, rows_of_lane=self._rows_of_lane)

    def _in_micro_batches(self, rows_BT: npt.NDArray[np.int64], number: int) -> Iterator[Batch]:
        for index in range(number):
            part = rows_BT[index * self.micro_batch_size :][: self.micro_batch_size]
            padded = np.zeros(
                (self.micro_batch_size, self._training.sequence_length + 1), dtype=np.int64
            )
            padded[: len(part)] = part
            batch = as_batch(padded, num_rows=len(part))
            yield apart(batch, end_id=self._document_end)

    def _read_held_out(self) -> npt.NDArray[np.int64]:
        lane = Lane(
            LaneShare(files=self._corpus.held_out, part=0, parts=1),
            TextTokenizer(self._tokenizer),
            self._training,
            position=LanePosition(0, 0, 0),
        )
        rows: list[npt.NDArray[np.int64]] = []
        while len(rows) < self._training.eval_samples:
            row = lane.next_sequence()
            if lane.position.file >= len(self._corpus.held_out):
                logger.warning(
                    "the held-out files give %d sequences, eval_samples asks for %d",
                    len(rows),
                    self._training.eval_samples,
                )
                break
            rows.append(row)
        return np.asarray(rows, dtype=np.int64).reshape(-1, self._training.sequence_length + 1)


def _steps(lanes: Mapping[int, Lane], *, rows_of_lane: int) -> Iterator[_Step]:
    while True:
        rows = [lane.next_sequence() for _ in range(rows_of_lane) for lane in lanes.values()]
        yield _Step(
            rows=np.stack(rows),
            positions={number: lane.position for number, lane in lanes.items()},
        )


class _Ahead:
    """Reads steps in a thread of its own, a few ahead of the training loop."""

    def __init__(self, steps: Iterator[_Step]) -> None:
        self._steps = steps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stream")
        self._ready = deque(self._thread.submit(next, steps) for _ in range(_STEPS_AHEAD))

    def next_step(self) -> _Step:
        """Wait for the next step; raises what reading it raised."""
        self._ready.append(self._thread.submit(next, self._steps))
        return self._ready.popleft().result()

    def stop(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _key(lane: int) -> str:
    return f"lane-{lane:05d}"
