"""Which samples a step trains on, and how text becomes tokens."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stationmaster.domain.errors import BadParameter
from training.data.corpus import list_files, prepare_dataset, read_shard
from training.data.packed import IGNORED_LABEL, BatchLoader, SampleOrder, rank_counters


@settings(deadline=None)
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
                order.index(counter)
                for rank in range(world_size)
                for counter in rank_counters(
                    start=start,
                    global_batch_size=global_batch_size,
                    rank=rank,
                    world_size=world_size,
                )
            ]
        )

    for step, samples in enumerate(taken):
        counters = range(step * global_batch_size, (step + 1) * global_batch_size)
        assert Counter(samples) == Counter(alone.index(counter) for counter in counters)


@given(seed=st.integers(0, 2**31 - 1), num_samples=st.integers(1, 300))
def test_sample_order_one_epoch_has_every_sample_once(seed: int, num_samples: int) -> None:
    order = SampleOrder(num_samples=num_samples, seed=seed)

    second_epoch = [order.index(counter) for counter in range(num_samples, 2 * num_samples)]

    assert sorted(second_epoch) == list(range(num_samples))


def test_sample_order_epochs_and_seeds_differ() -> None:
    order = SampleOrder(num_samples=100, seed=1)
    other = SampleOrder(num_samples=100, seed=2)

    epochs = [[order.index(100 * epoch + i) for i in range(100)] for epoch in range(2)]

    assert epochs[0] != epochs[1]
    assert epochs[0] != [other.index(i) for i in range(100)]


def test_batch_loader_uneven_ranks_pad_with_ignored_rows(text_dir: Path, cache_dir: Path) -> None:
    shard = prepare_dataset(str(text_dir), vocab_size=512, cache_dir=cache_dir)

    def loader(rank: int, world_size: int) -> BatchLoader:
        return BatchLoader(
            shard,
            sequence_length=16,
            global_batch_size=5,
            micro_batch_tokens=32,
            seed=3,
            rank=rank,
            world_size=world_size,
        )

    per_rank = [list(loader(rank, 2).micro_batches(10)) for rank in range(2)]

    assert [[tuple(m.inputs.shape) for m in batches] for batches in per_rank] == [[(2, 16)] * 2] * 2
    rows = [
        row for batches in per_rank for m in batches for row in zip(m.inputs, m.labels, strict=True)
    ]
    real = [(i.tolist(), lab.tolist()) for i, lab in rows if int(lab[0]) != IGNORED_LABEL]
    assert len(rows) == 8
    assert all(inputs[1:] == labels[:-1] for inputs, labels in real)
    alone = [
        (i.tolist(), lab.tolist())
        for m in loader(0, 1).micro_batches(10)
        for i, lab in zip(m.inputs, m.labels, strict=True)
        if int(lab[0]) != IGNORED_LABEL
    ]
    assert sorted(real) == sorted(alone)


def test_batch_loader_too_little_text_names_the_remedy(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("short")
    shard = prepare_dataset(str(text), vocab_size=512, cache_dir=tmp_path / "cache")

    with pytest.raises(BadParameter, match="too few for one sequence of 128; use more text"):
        BatchLoader(
            shard,
            sequence_length=128,
            global_batch_size=1,
            micro_batch_tokens=128,
            seed=0,
            rank=0,
            world_size=1,
        )


def test_prepare_dataset_tokens_decode_to_the_text(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("the first train leaves\n")
    (text / "b.txt").write_text("\u00e9 and \u4e2d stay whole\n")

    shard = prepare_dataset(str(text), vocab_size=512, cache_dir=tmp_path / "cache")

    tokens = np.fromfile(shard.tokens_path, dtype=shard.dtype)
    tokenizer = Tokenizer.from_file(str(shard.tokens_path.with_name("tokenizer.json")))
    decoded = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
    assert decoded == (
        "the first train leaves\n<|endoftext|>\u00e9 and \u4e2d stay whole\n<|endoftext|>"
    )
    assert shard.num_tokens == len(tokens)
    assert int(tokens.max()) < shard.vocab_size


def test_prepare_dataset_second_call_reads_the_cache(text_dir: Path, tmp_path: Path) -> None:
    first = prepare_dataset(str(text_dir), vocab_size=512, cache_dir=tmp_path)
    written = first.tokens_path.stat().st_mtime_ns

    second = prepare_dataset(str(text_dir), vocab_size=512, cache_dir=tmp_path)

    assert second == first
    assert second.tokens_path.stat().st_mtime_ns == written


def test_prepare_dataset_changed_text_builds_another_shard(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("before " * 50)
    before = prepare_dataset(str(text), vocab_size=512, cache_dir=tmp_path / "cache")
    (text / "a.txt").write_text("after " * 50)

    after = prepare_dataset(str(text), vocab_size=512, cache_dir=tmp_path / "cache")

    assert after.sha256 != before.sha256


def test_prepare_dataset_concurrent_processes_build_once(text_dir: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from training.data.corpus import prepare_dataset; "
        "s = prepare_dataset(sys.argv[1], vocab_size=1024, cache_dir=Path(sys.argv[2])); "
        "print(s.sha256, s.tokens_path.stat().st_ino)"
    )
    command = [sys.executable, "-c", program, str(text_dir), str(tmp_path)]

    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate(timeout=60)[0] for process in started]

    assert len(set(answers)) == 1
    assert answers[0].strip()
    assert list((tmp_path / "datasets").glob(".building-*")) == []


def test_read_shard_truncated_tokens_are_refused(text_dir: Path, tmp_path: Path) -> None:
    shard = prepare_dataset(str(text_dir), vocab_size=512, cache_dir=tmp_path)
    shard.tokens_path.write_bytes(shard.tokens_path.read_bytes()[:-2])

    with pytest.raises(BadParameter, match="its manifest says"):
        read_shard(shard.tokens_path.parent)


def test_list_files_stdlib_is_stable_and_skips_tests() -> None:
    files = list_files("python-stdlib")

    assert files == list_files("python-stdlib")
    assert 4_500_000 < sum(path.stat().st_size for path in files) < 6_000_000
    assert not any({"test", "idlelib", "site-packages"} & set(path.parts[3:]) for path in files)


def test_list_files_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="holds no files"):
        list_files(str(tmp_path))
