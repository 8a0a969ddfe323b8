"""Packed instructions to batches: this rank's part of any step.

Nothing is kept between steps: a global counter of sequences and a seeded permutation decide which
are read, for any number of ranks (see `order`).

Shape legend: B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stationmaster.domain.catalogue.training_config import LanguageTraining
from training.data.instructions import PreparedInstructions
from training.data.packed import CountedSource
from training.data.tokenizers import describe_tokenizer
from training.task import IGNORED_LABEL, Batch


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
