"""Packed tokens to batches: which samples a step trains on, and this rank's part of them.

Called by the trainer. One global counter of samples and a seeded permutation decide everything, so
that the order of samples, and what has been seen at a given step, does not depend on the number of
ranks: a run may go on with more or fewer of them and sees every sample of an epoch exactly once.

Shape legend: B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from stationmaster.domain.errors import BadParameter
from training.data.corpus import TokenShard

IGNORED_LABEL: Final = -100
"""A position without a target: it adds neither to the loss nor to the token count."""


class SampleOrder:
    """Maps the global sample counter to sample indices: a fresh seeded permutation every epoch."""

    def __init__(self, *, num_samples: int, seed: int) -> None:
        self._num_samples = num_samples
        self._seed = seed
        self._epoch = -1
        self._permutation: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def index(self, counter: int) -> int:
        """The sample that is `counter`-th over the whole run, all ranks together."""
        epoch, position = divmod(counter, self._num_samples)
        if epoch != self._epoch:
            self._permutation = _permutation(self._num_samples, seed=self._seed, epoch=epoch)
            self._epoch = epoch
        return int(self._permutation[position])


def _permutation(num_samples: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Shuffle by sorting random keys: numpy promises Philox's stream for ever, not its shuffle."""
    keys = np.random.Philox(key=[seed, epoch]).random_raw(num_samples)
    return np.argsort(keys, kind="stable").astype(np.int64)


def rank_counters(*, start: int, global_batch_size: int, rank: int, world_size: int) -> range:
    """The sample counters of one rank's part of a step; over all ranks they are the batch."""
    return range(start + rank, start + global_batch_size, world_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """Input ids (B, T) and the ids that follow them, IGNORED_LABEL where there is none."""

    inputs: torch.Tensor
    labels: torch.Tensor


class BatchLoader:
    """Reads this rank's part of any step's batch from the memory-mapped shard.

    Every rank gets the same number of equally shaped micro-batches, because FSDP's collectives must
    pair up; where the batch does not divide, rows without any label fill the gap.
    """

    def __init__(
        self,
        shard: TokenShard,
        *,
        sequence_length: int,
        global_batch_size: int,
        micro_batch_tokens: int,
        seed: int,
        rank: int,
        world_size: int,
    ) -> None:
        num_samples = (shard.num_tokens - 1) // sequence_length
        if num_samples < 1:
            raise BadParameter(
                f"the data set has {shard.num_tokens} tokens, too few for one sequence of "
                f"{sequence_length}; use more text or a shorter sequence_length"
            )
        # A plain view of the mapped file: slicing np.memmap itself costs five times as much.
        self._tokens = np.asarray(np.memmap(shard.tokens_path, dtype=shard.dtype, mode="r"))
        self._order = SampleOrder(num_samples=num_samples, seed=seed)
        self._sequence_length = sequence_length
        self._global_batch_size = global_batch_size
        self._rank = rank
        self._world_size = world_size
        self.num_tokens = shard.num_tokens
        rows = -(-global_batch_size // world_size)
        fits = max(1, micro_batch_tokens // sequence_length)
        self.num_micro_batches = -(-rows // fits)
        self.micro_batch_size = -(-rows // self.num_micro_batches)

    def micro_batches(self, samples_seen: int) -> Iterator[MicroBatch]:
        """The micro-batches of the step that follows after `samples_seen` samples."""
        counters = rank_counters(
            start=samples_seen,
            global_batch_size=self._global_batch_size,
            rank=self._rank,
            world_size=self._world_size,
        )
        for first in range(
            0, self.num_micro_batches * self.micro_batch_size, self.micro_batch_size
        ):
            yield self._read(counters[first : first + self.micro_batch_size])

    def _read(self, counters: range) -> MicroBatch:
        length = self._sequence_length
        rows_BT = np.zeros((self.micro_batch_size, length + 1), dtype=np.int64)
        for row, counter in enumerate(counters):
            start = self._order.index(counter) * length
            rows_BT[row] = self._tokens[start : start + length + 1]
        labels_BT = rows_BT[:, 1:].copy()
        labels_BT[len(counters) :] = IGNORED_LABEL
        return MicroBatch(
            inputs=torch.from_numpy(rows_BT[:, :-1].copy()),
            labels=torch.from_numpy(labels_BT),
        )
