"""One global order of samples for any number of ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.order import SampleOrder, micro_batch_shape, rank_counters


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**31 - 1),
    num_samples=st.integers(1, 200),
    global_batch_size=st.integers(1, 17),
    world_sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
)
def test_rank_counters_any_world_sizes_cover_the_same_samples(
    seed: int, num_samples: int, global_batch_size: int, world_sizes: list[int]
) -> None:
    order = SampleOrder(num_samples=num_samples, seed=seed)
    alone = SampleOrder(num_samples=num_samples, seed=seed)

    taken: list[list[int]] = []
    for step, world_size in enumerate(world_sizes):
        start = step * global_batch_size
        taken.append(
            [
                int(sample)
                for rank in range(world_size)
                for sample in order.indices(
                    rank_counters(
                        start=start,
                        global_batch_size=global_batch_size,
                        rank=rank,
                        world_size=world_size,
                    )
                )
            ]
        )

    for step, samples in enumerate(taken):
        counters = range(step * global_batch_size, (step + 1) * global_batch_size)
        assert Counter(samples) == Counter(alone.index(counter) for counter in counters)


@given(
    seed=st.integers(0, 2**31 - 1),
    num_samples=st.integers(1, 10_000),
    epoch=st.integers(0, 1000),
)
def test_sample_order_every_epoch_has_every_sample_once(
    seed: int, num_samples: int, epoch: int
) -> None:
    order = SampleOrder(num_samples=num_samples, seed=seed)

    samples = order.indices(range(epoch * num_samples, (epoch + 1) * num_samples))

    assert np.array_equal(np.sort(samples), np.arange(num_samples))


@given(start=st.integers(0, 20_000), length=st.integers(0, 9000), step=st.integers(1, 7))
def test_sample_order_ranges_agree_with_single_counters(start: int, length: int, step: int) -> None:
    order = SampleOrder(num_samples=5000, seed=3)
    counters = range(start, start + length, step)

    samples = order.indices(counters)

    assert len(samples) == len(counters)
    for index in {0, len(counters) // 2, len(counters) - 1} if counters else set():
        assert samples[index] == SampleOrder(num_samples=5000, seed=3).index(counters[index])


def test_sample_order_is_shuffled_evenly() -> None:
    samples = SampleOrder(num_samples=100_000, seed=5).indices(range(100_000))

    # Of a random permutation: a mean move of a third of the length, no memory of the neighbour.
    assert np.abs(samples - np.arange(100_000)).mean() == pytest.approx(33_333, rel=0.02)
    assert abs(np.corrcoef(samples[:-1], samples[1:])[0, 1]) < 0.02
    assert np.count_nonzero(np.diff(samples) == 1) < 10


def test_sample_order_of_a_trillion_samples_takes_no_memory() -> None:
    order = SampleOrder(num_samples=10**12, seed=5)

    samples = order.indices(range(7 * 10**11, 7 * 10**11 + 10_000))

    assert len(set(samples.tolist())) == 10_000
    assert samples.max() < 10**12


def test_sample_order_stays_as_it_was_for_runs_that_go_on() -> None:
    order = SampleOrder(num_samples=10, seed=1)

    assert order.indices(range(10)).tolist() == [4, 1, 8, 0, 9, 3, 5, 2, 7, 6]
    assert order.indices(range(10, 20)).tolist() == [3, 7, 0, 5, 8, 6, 4, 2, 1, 9]


@pytest.mark.parametrize(
    ("num_rows", "micro_batch_size", "expected"),
    [(5, 2, (3, 2)), (8, 8, (1, 8)), (9, 8, (2, 5)), (1, 64, (1, 1)), (0, 4, (0, 0))],
)
def test_micro_batch_shape_is_even_and_within_its_limit(
    num_rows: int, micro_batch_size: int, expected: tuple[int, int]
) -> None:
    assert micro_batch_shape(num_rows, micro_batch_size=micro_batch_size) == expected
