"""Which sample comes when, for any number of ranks, in no memory.

One global counter of samples and a seeded permutation of each epoch decide the order, so that what
has been seen at a given step does not depend on the number of ranks: a run may continue with more
or fewer of them and sees every sample of an epoch exactly once.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

_Words = npt.NDArray[np.uint64]

_ROUNDS: Final = 6
"""Four make a Feistel network with random rounds a random permutation (Luby and Rackoff, 1988)."""
_BLOCK: Final = 4096


class SampleOrder:
    """Maps the global sample counter to sample indices: a fresh seeded permutation every epoch.

    The permutation is a Feistel network over the pairs (left, right) of an a x b grid that just
    holds the samples; a pair outside them is permuted again until it is inside. Computed where it
    is needed, it takes neither time to start nor memory that grows with the number of samples.
    """

    def __init__(self, *, num_samples: int, seed: int) -> None:
        self._num_samples = num_samples
        self._seed = seed
        self._left = math.isqrt(num_samples - 1) + 1
        self._right = -(-num_samples // self._left)
        self._block = -1
        self._indices: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def index(self, counter: int) -> int:
        """Return the sample that is `counter`-th over the whole run, all ranks together."""
        return int(self.indices(range(counter, counter + 1))[0])

    def indices(self, counters: range) -> npt.NDArray[np.int64]:
        """Return the samples of several counters, in their order."""
        if not counters:
            return np.empty(0, dtype=np.int64)
        first, last = counters[0] // _BLOCK, counters[-1] // _BLOCK
        if first == last:
            base = first * _BLOCK
            return self._of_block(first)[
                counters.start - base : counters.stop - base : counters.step
            ]
        wanted = np.arange(counters.start, counters.stop, counters.step)
        return np.concatenate(
            [
                self._of_block(block)[wanted[wanted // _BLOCK == block] - block * _BLOCK]
                for block in range(first, last + 1)
            ]
        )

    def _of_block(self, block: int) -> npt.NDArray[np.int64]:
        if block != self._block:
            counters = np.arange(block * _BLOCK, (block + 1) * _BLOCK, dtype=np.uint64)
            epochs, positions = np.divmod(counters, np.uint64(self._num_samples))
            self._indices = self._permute(epochs, positions).astype(np.int64)
            self._block = block
        return self._indices

    def _permute(self, epochs: _Words, positions: _Words) -> _Words:
        """Map each position of each epoch within range(num_samples)."""
        samples = self._once(epochs, positions)
        while (outside := np.flatnonzero(samples >= self._num_samples)).size:
            samples[outside] = self._once(epochs[outside], samples[outside])
        return samples

    def _once(self, epochs: _Words, positions: _Words) -> _Words:
        a, b = np.uint64(self._left), np.uint64(self._right)
        left, right = np.divmod(positions, b)
        for number in range(_ROUNDS):
            # Adding a function of the one half to the other, modulo its size, can be undone.
            key = _mixed(_mixed(epochs + np.uint64(self._seed << 32)) + np.uint64(number))
            if number % 2:
                right = (right + _mixed(left ^ key) % b) % b
            else:
                left = (left + _mixed(right ^ key) % a) % a
        return left * b + right


def _mixed(words: _Words) -> _Words:
    """Let every output bit depend on every input bit. Source: SplitMix64, Steele et al., 2014."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def rank_counters(*, start: int, global_batch_size: int, rank: int, world_size: int) -> range:
    """Return the sample counters of one rank's part of a step; together they are the batch."""
    return range(start + rank, start + global_batch_size, world_size)


def micro_batch_shape(num_rows: int, *, micro_batch_size: int) -> tuple[int, int]:
    """Split a rank's rows into equal micro-batches: (number, size)."""
    number = -(-num_rows // micro_batch_size)
    return number, -(-num_rows // max(number, 1))
