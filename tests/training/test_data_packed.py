"""One order of samples for any number of ranks, and packed tokens as every rank's batches."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from data_sets import language_training, pack_ids
from hypothesis import given
from hypothesis import strategies as st
from spoiling import turn_a_bit

from stationmaster.domain.errors import BadParameter
from training.data.order import SampleOrder, micro_batch_shape
from training.data.packed import PackedSource
from training.data.shards import PackedData, read_packed, verify_share
from training.task import IGNORED_LABEL, Batch

LENGTH = 8


@pytest.fixture
def counting(tmp_path: Path) -> PackedData:
    """29 samples of 8; the tokens count upwards, so that a token tells its place."""
    return pack_ids(tmp_path / "packed", range(29 * LENGTH + 3), shard_tokens=50)


def source(
    data: PackedData,
    *,
    rank: int = 0,
    world_size: int = 1,
    eval_samples: int = 0,
    global_batch_size: int = 5,
) -> PackedSource:
    return PackedSource(
        data,
        language_training(
            sequence_length=LENGTH,
            global_batch_size=global_batch_size,
            micro_batch_size=2,
            eval_samples=eval_samples,
        ),
        rank=rank,
        world_size=world_size,
    )


def samples_of(batches: Iterable[Batch]) -> list[int]:
    """The numbers of the samples; checks every token of each, and that padding is all padding."""
    samples = []
    for batch in batches:
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            if IGNORED_LABEL in targets:
                assert targets == [IGNORED_LABEL] * LENGTH
                continue
            assert inputs == list(range(inputs[0], inputs[0] + LENGTH))
            assert targets == [token + 1 for token in inputs]
            assert inputs[0] % LENGTH == 0
            samples.append(inputs[0] // LENGTH)
    return samples


def test_packed_source_changing_ranks_mid_epoch_reads_every_sample_once(
    counting: PackedData,
) -> None:
    seen: list[int] = []
    samples_seen = 0
    for world_size, steps in ((2, 2), (1, 1), (3, 2)):
        for _ in range(steps):
            for rank in range(world_size):
                reader = source(counting, rank=rank, world_size=world_size, eval_samples=4)
                seen += samples_of(reader.micro_batches(samples_seen))
            samples_seen += 5

    assert samples_seen == 29 - 4
    assert Counter(seen) == Counter(range(25))


def test_packed_source_uneven_ranks_get_equal_shapes(counting: PackedData) -> None:
    per_rank = [
        list(source(counting, rank=rank, world_size=2).micro_batches(10)) for rank in range(2)
    ]

    shapes = [[tuple(batch.inputs.shape) for batch in batches] for batches in per_rank]
    assert shapes == [[(2, LENGTH)] * 2] * 2
    assert [batch.count_targets() for batch in per_rank[1]] == [2 * LENGTH, 0]
    together = samples_of(batch for batches in per_rank for batch in batches)
    assert Counter(together) == Counter(samples_of(source(counting).micro_batches(10)))


@pytest.mark.parametrize("world_size", [1, 2, 6])
def test_packed_source_held_out_samples_are_evaluated_once_and_never_trained_on(
    counting: PackedData, world_size: int
) -> None:
    readers = [
        source(counting, rank=rank, world_size=world_size, eval_samples=5)
        for rank in range(world_size)
    ]

    evaluated = [list(reader.evaluation_batches()) for reader in readers]
    trained = [
        sample for step in range(30) for sample in samples_of(readers[0].micro_batches(step))
    ]

    assert Counter(s for batches in evaluated for s in samples_of(batches)) == Counter(
        range(24, 29)
    )
    assert len({len(batches) for batches in evaluated}) == 1
    assert set(trained).isdisjoint(range(24, 29))


def test_packed_source_one_file_or_many_give_the_same_batches(tmp_path: Path) -> None:
    ids = range(29 * LENGTH + 3)
    whole = pack_ids(tmp_path / "whole", ids, shard_tokens=1000)
    # Of 3 tokens: every sample spans several files.
    pieces = [pack_ids(tmp_path / str(n), ids, shard_tokens=n) for n in (3, 8, 50)]

    expected = samples_of(source(whole, global_batch_size=29).micro_batches(0))

    assert sorted(expected) == list(range(29))
    for data in pieces:
        assert samples_of(source(data, global_batch_size=29).micro_batches(0)) == expected


@pytest.mark.parametrize(
    ("num_tokens", "eval_samples", "message"),
    [
        (LENGTH, 0, "has 8 tokens, too few for one sequence of 8; use more text"),
        (3 * LENGTH + 1, 3, "too few for one sequence of 8 and 3 held out by eval_samples"),
    ],
)
def test_packed_source_too_little_text_names_the_remedy(
    tmp_path: Path, num_tokens: int, eval_samples: int, message: str
) -> None:
    data = pack_ids(tmp_path / "packed", range(num_tokens), shard_tokens=100)

    with pytest.raises(BadParameter, match=message):
        source(data, eval_samples=eval_samples)


def test_read_packed_truncated_file_is_refused(counting: PackedData) -> None:
    counting.paths[1].write_bytes(counting.paths[1].read_bytes()[:-2])

    with pytest.raises(
        BadParameter, match=r"tokens-00001.bin has 198 bytes, its manifest says 200"
    ):
        read_packed(counting.directory)


def verify(
    data: PackedData, *, vocab_size: int = 2**20, rank: int = 0, world_size: int = 1
) -> None:
    verify_share(
        data,
        vocab_size=vocab_size,
        rank=rank,
        world_size=world_size,
        stamps=data.directory / "stamps",
    )


def test_verify_share_ranks_read_every_file_once(counting: PackedData) -> None:
    assert len(counting.paths) == 5
    turn_a_bit(counting.paths[3])

    verify(counting, rank=0, world_size=2)
    with pytest.raises(BadParameter, match=r"tokens-00003.bin is not what was packed"):
        verify(counting, rank=1, world_size=2)


def test_verify_share_reads_a_file_again_only_when_it_changed(counting: PackedData) -> None:
    verify(counting)
    state = counting.paths[0].stat()
    turn_a_bit(counting.paths[0])
    os.utime(counting.paths[0], ns=(state.st_atime_ns, state.st_mtime_ns))

    verify(counting)  # the stamp says that it is well

    os.utime(counting.paths[0])
    with pytest.raises(BadParameter, match=r"tokens-00000.bin is not what was packed"):
        verify(counting)


def test_verify_share_id_outside_of_the_vocabulary_names_the_file(counting: PackedData) -> None:
    verify(counting, vocab_size=235)  # 0 to 234; noted, so that it is known without reading again

    with pytest.raises(BadParameter, match=r"tokens-00004.bin holds the token id 234, the model's"):
        verify(counting, vocab_size=234)


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
