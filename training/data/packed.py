"""Packed tokens and instructions to batches: this rank's part of any step, of mapped files.

Nothing is kept between steps: the sample counter decides alone. The last sequences of packed tokens
are held out for evaluation and never trained on.

Shape legend: B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import BadParameter
from training.data.order import SampleOrder, micro_batch_shape, rank_counters
from training.data.shards import PackedData
from training.data.tokenizers import TokenIds, describe_tokenizer
from training.task import IGNORED_LABEL, Batch, DataState

if TYPE_CHECKING:
    from training.data.instructions import PreparedInstructions


class CountedSource(ABC):
    """Sequences that are found by number, so that the global sample counter alone is the state.

    It is what packed text and instructions share; `training.task.BatchSource` says the rest.
    """

    def __init__(
        self,
        training: LanguageTraining,
        *,
        identity: str,
        num_trained: int,
        num_held_out: int,
        document_end: int | None,
        rank: int,
        world_size: int,
    ) -> None:
        self._document_end = document_end
        self._order = SampleOrder(num_samples=num_trained, seed=training.seed)
        self._num_held_out = num_held_out
        self._global_batch_size = training.global_batch_size
        self._rank = rank
        self._world_size = world_size
        self.identity = identity
        self.samples_per_epoch = num_trained
        self.num_micro_batches, self.micro_batch_size = micro_batch_shape(
            -(-training.global_batch_size // world_size),
            micro_batch_size=training.micro_batch_size,
        )

    @abstractmethod
    def _read_trained(self, samples: npt.NDArray[np.int64]) -> Batch:
        """Read sequences that are trained on, by number; padded to a whole micro-batch."""

    @abstractmethod
    def _read_held_out(self, samples: npt.NDArray[np.int64]) -> Batch:
        """Read held-out sequences, counted from 0; padded to a whole micro-batch."""

    def micro_batches(self, samples_seen: int) -> Iterator[Batch]:
        """Yield the micro-batches of the step after `samples_seen` samples."""
        counters = rank_counters(
            start=samples_seen,
            global_batch_size=self._global_batch_size,
            rank=self._rank,
            world_size=self._world_size,
        )
        size = self.micro_batch_size
        for first in range(0, self.num_micro_batches * size, size):
            batch = self._read_trained(self._order.indices(counters[first : first + size]))
            yield apart(batch, end_id=self._document_end)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield this rank's part of the held-out samples, as many batches on every rank."""
        most = -(-self._num_held_out // self._world_size)
        mine = np.arange(self._num_held_out)[self._rank :: self._world_size]
        for first in range(0, most, self.micro_batch_size):
            batch = self._read_held_out(mine[first : first + self.micro_batch_size])
            yield apart(batch, end_id=self._document_end)

    def state(self) -> DataState:
        """Return nothing: the sample counter decides alone."""
        return {}

    def restore(self, state: DataState) -> None:
        """Restore nothing."""
        assert not state


class PackedSource(CountedSource):
    """A rank's part of a packed data set; a `training.task.BatchSource`.

    Sample i is the tokens [i T, i T + T], the last of which is the next sample's first: each token
    but the very first is a target once. A sample may begin in one document and end in another.
    """

    def __init__(
        self, data: PackedData, training: LanguageTraining, *, rank: int, world_size: int
    ) -> None:
        manifest = data.manifest
        sequence_length, eval_samples = training.sequence_length, training.eval_samples
        num_samples = (manifest.num_tokens - 1) // sequence_length
        self._num_trained = num_samples - eval_samples
        if self._num_trained < 1:
            held = f" and {eval_samples} held out by eval_samples" if eval_samples else ""
            raise BadParameter(
                f"the data set has {manifest.num_tokens} tokens, too few for one sequence of "
                f"{sequence_length}{held}; use more text or a shorter sequence_length"
            )
        self._tokens = MappedTokens(data, sequence_length=sequence_length)
        self._sequence_length = sequence_length
        self._num_tokens = manifest.num_tokens
        super().__init__(
            training,
            identity=manifest.sha256,
            num_trained=self._num_trained,
            num_held_out=eval_samples,
            document_end=data.tokenizer.end_id if training.document_mask else None,
            rank=rank,
            world_size=world_size,
        )

    def facts(self) -> Mapping[str, str | int]:
        """Return the tokens, and sequences of an epoch."""
        return {"dataset_tokens": self._num_tokens, "dataset_samples": self._num_trained}

    def _read_held_out(self, samples: npt.NDArray[np.int64]) -> Batch:
        return self._read_trained(samples + self._num_trained)

    def _read_trained(self, samples: npt.NDArray[np.int64]) -> Batch:
        rows_BT = np.zeros((self.micro_batch_size, self._sequence_length + 1), dtype=np.int64)
        self._tokens.read_into(rows_BT, samples)
        return as_batch(rows_BT, num_rows=len(samples))


def as_batch(rows_BT: npt.NDArray[np.int64], *, num_rows: int) -> Batch:
    """Split rows of T + 1 tokens into inputs and targets; after `num_rows` rows comes padding."""
    targets_BT = rows_BT[:, 1:].copy()
    targets_BT[num_rows:] = IGNORED_LABEL
    return Batch(
        inputs=torch.from_numpy(rows_BT[:, :-1].copy()), targets=torch.from_numpy(targets_BT)
    )


def apart(batch: Batch, *, end_id: int | None) -> Batch:
    """Keep documents apart, each of which ends with `end_id`; nothing without it.

    Every token's place in its document is added to the batch, so that attention can stay inside of
    it. The first token of a document cannot be predicted from the one before, so it is no target.
    """
    if end_id is None:
        return batch
    is_end_BT = batch.inputs == end_id
    is_first_BT = torch.ones_like(is_end_BT)
    is_first_BT[:, 1:] = is_end_BT[:, :-1]
    index_T = torch.arange(batch.inputs.shape[1])
    began_BT = torch.where(is_first_BT, index_T, 0).cummax(dim=1).values
    return replace(
        batch,
        targets=batch.targets.masked_fill(is_end_BT, IGNORED_LABEL),
        positions=index_T - began_BT,
    )


class MappedTokens:
    """The tokens of all files as one sequence, mapped into memory; the system caches what is read.

    A training process of many ranks on a node maps the same pages.
    """

    def __init__(self, data: PackedData, *, sequence_length: int) -> None:
        self._sequence_length = sequence_length
        dtype = data.manifest.plan.dtype
        # Plain views of the mapped files: slicing np.memmap itself costs five times as much.
        self._files = [np.asarray(np.memmap(path, dtype=dtype, mode="r")) for path in data.paths]
        lengths = [len(file) for file in self._files]
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        # windows[k] is the sequence of T + 1 tokens that starts at token k of a file.
        self._windows = [_windows(file, sequence_length + 1) for file in self._files]

    def read_into(self, rows_BT: npt.NDArray[np.int64], samples: npt.NDArray[np.int64]) -> None:
        """Fill the first len(samples) rows with the samples' T + 1 tokens."""
        starts = samples * self._sequence_length
        if len(self._files) == 1 and len(samples):
            # The usual case of a small data set, at twice the speed of the general one.
            rows_BT[: len(samples)] = self._windows[0][starts]
            return
        files = np.searchsorted(self._ends, starts, side="right")
        whole = starts + self._sequence_length < self._ends[files]
        for file in np.unique(files):
            rows = np.flatnonzero((files == file) & whole)
            if rows.size:
                rows_BT[rows] = self._windows[file][starts[rows] - self._starts[file]]
        for row in np.flatnonzero(~whole):
            self._read_across(rows_BT[row], start=int(starts[row]), file=int(files[row]))

    def _read_across(self, row_T: npt.NDArray[np.int64], *, start: int, file: int) -> None:
        """Read a sample that begins in one file and ends in another."""
        filled = 0
        while filled < len(row_T):
            position = start + filled - int(self._starts[file])
            part = self._files[file][position : position + len(row_T) - filled]
            row_T[filled : filled + len(part)] = part
            filled += len(part)
            file += 1


def _windows(file: TokenIds, length: int) -> npt.NDArray[Any]:
    """View a file so that row k is the tokens [k, k + length); no rows if it is too short."""
    if len(file) < length:
        return file[:0].reshape(0, length)
    return np.lib.stride_tricks.sliding_window_view(file, length)


class InstructionSource(CountedSource):
    """A rank's part of packed instructions; a `training.task.BatchSource`."""

    def __init__(
        self,
        prepared: PreparedInstructions,
        training: LanguageTraining,
        *,
        rank: int,
        world_size: int,
    ) -> None:
        manifest = self._manifest = prepared.manifest
        masks = training.document_mask
        self._trained = _Sequences(prepared, "train", manifest.num_sequences)
        self._evaluated = _Sequences(prepared, "eval", manifest.num_eval_sequences)
        super().__init__(
            training,
            identity=manifest.sha256,
            num_trained=manifest.num_sequences,
            num_held_out=manifest.num_eval_sequences,
            document_end=describe_tokenizer(prepared.tokenizer).end_id if masks else None,
            rank=rank,
            world_size=world_size,
        )

    def _read_trained(self, samples: npt.NDArray[np.int64]) -> Batch:
        return self._trained.read(samples, num_rows=self.micro_batch_size)

    def _read_held_out(self, samples: npt.NDArray[np.int64]) -> Batch:
        return self._evaluated.read(samples, num_rows=self.micro_batch_size)

    def facts(self) -> Mapping[str, str | int]:
        """Return counts for the `started` line: what is trained on in one epoch."""
        return {
            "dataset_tokens": self._manifest.num_tokens,
            "dataset_targets": self._manifest.num_targets,
            "dataset_samples": self._manifest.num_sequences,
            "dataset_examples": self._manifest.num_examples,
            "dataset_examples_cut": self._manifest.num_truncated,
        }


class _Sequences:
    """Two mapped files: token ids, and which of them are targets, T + 1 of each a sequence."""

    def __init__(self, prepared: PreparedInstructions, name: str, num_sequences: int) -> None:
        self._length = prepared.manifest.sequence_length + 1
        path = prepared.directory / name
        self._tokens = self._map(
            path.with_suffix(".tokens"), num_sequences, prepared.manifest.dtype
        )
        self._is_target = self._map(path.with_suffix(".targets"), num_sequences, "bool")

    def _map(self, path: Path, num_sequences: int, dtype: str) -> npt.NDArray[Any]:
        shape = (num_sequences, self._length)
        if not num_sequences:  # an empty file cannot be mapped
            return np.empty(shape, dtype=dtype)
        return np.memmap(path, dtype=dtype, mode="r", shape=shape)

    def read(self, indices: npt.NDArray[np.int64], *, num_rows: int) -> Batch:
        """Read `num_rows` rows: those of `indices`, then rows without any target."""
        tokens_BT = np.zeros((num_rows, self._length), dtype=np.int64)
        is_target_BT = np.zeros((num_rows, self._length), dtype=np.bool_)
        tokens_BT[: len(indices)] = self._tokens[indices]
        is_target_BT[: len(indices)] = self._is_target[indices]
        targets_BT = np.where(is_target_BT[:, 1:], tokens_BT[:, 1:], IGNORED_LABEL)
        return Batch(
            inputs=torch.from_numpy(tokens_BT[:, :-1].copy()), targets=torch.from_numpy(targets_BT)
        )
