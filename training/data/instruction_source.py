"""Packed instructions to batches: this rank's part of any step.

Nothing is kept between steps: a global counter of sequences and a seeded permutation decide which
are read, for any number of ranks (see `order`).

Shape legend: B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from stationmaster.domain.catalogue.training_config import LanguageTraining
from training.config import TrainerConfig
from training.data.instructions import PreparedInstructions
from training.data.packed import CountedSource
from training.data.tokenizers import describe_tokenizer
from training.task import IGNORED_LABEL, Batch


class InstructionSource(CountedSource):
    """A rank's part of packed instructions; a `training.task.BatchSource`."""

    def __init__(
        self,
        prepared: PreparedInstructions,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        document_end: int | None = None,
    ) -> None:
        manifest = prepared.manifest
        self._manifest = manifest
        self._trained = _Sequences(
            prepared.directory / "train",
            num_sequences=manifest.num_sequences,
            length=manifest.sequence_length + 1,
            dtype=manifest.dtype,
        )
        self._evaluated = _Sequences(
            prepared.directory / "eval",
            num_sequences=manifest.num_eval_sequences,
            length=manifest.sequence_length + 1,
            dtype=manifest.dtype,
        )
        super().__init__(
            identity=manifest.sha256,
            num_trained=manifest.num_sequences,
            num_held_out=manifest.num_eval_sequences,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            document_end=document_end,
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


def open_instructions(
    prepared: PreparedInstructions, config: TrainerConfig, *, rank: int, world_size: int
) -> InstructionSource:
    """Open this rank's part of prepared instructions."""
    training = config.recipe.training
    assert isinstance(training, LanguageTraining)
    return InstructionSource(
        prepared,
        global_batch_size=training.global_batch_size,
        micro_batch_size=training.micro_batch_size,
        seed=training.seed,
        rank=rank,
        world_size=world_size,
        document_end=describe_tokenizer(prepared.tokenizer).end_id
        if training.document_mask
        else None,
    )


class _Sequences:
    """Two mapped files: token ids, and which of them are targets, T + 1 of each a sequence."""

    def __init__(self, path: Path, *, num_sequences: int, length: int, dtype: str) -> None:
        shape = (num_sequences, length)
        # An empty file cannot be mapped.
        self._tokens = (
            np.memmap(path.with_suffix(".tokens"), dtype=dtype, mode="r", shape=shape)
            if num_sequences
            else np.empty(shape, dtype=dtype)
        )
        self._is_target = (
            np.memmap(path.with_suffix(".targets"), dtype=np.bool_, mode="r", shape=shape)
            if num_sequences
            else np.empty(shape, dtype=np.bool_)
        )
        self._length = length

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
