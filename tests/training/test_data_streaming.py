"""Streams: every rank its own data, and exactly on where a run stopped, on any number of ranks."""

from __future__ import annotations

import gc
import threading
from collections import Counter, deque
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from data_sets import language_training, number_tokenizer, numbered, write_rows

from stationmaster.domain.errors import BadParameter
from tests.support.patience import PATIENCE_S
from training.data.corpus_lookup import find_corpus
from training.data.streaming import StreamingSource, lane_share, num_lanes
from training.task import IGNORED_LABEL, Batch, DataState

LENGTH = 10
BATCH = 6
DOCUMENTS = 240


def stream(
    directory: Path, *, files: int, documents: int = DOCUMENTS, held_out: bool = False
) -> Path:
    """Documents of 3 to 25 tokens, each token the document's number, dealt out to files."""
    texts = [numbered(n + 1, length=3 + (7 * n) % 23) for n in range(documents)]
    for number in range(files):
        # Some rows are empty: they count as rows and give nothing.
        rows = [row for text in texts[number::files] for row in (text, "")]
        write_rows(directory / "text" / f"part-{number:02}.jsonl", rows)
    if held_out:
        texts = [numbered(1000 + n, length=9) for n in range(4)]
        write_rows(directory / "text" / "validation.jsonl", texts)
    number_tokenizer(directory / "tokenizer")
    return directory


def source(
    directory: Path,
    *,
    rank: int = 0,
    world_size: int = 1,
    eval_samples: int = 0,
    global_batch_size: int = BATCH,
) -> StreamingSource:
    return StreamingSource(
        find_corpus(f"stream:{directory / 'text'}"),
        number_tokenizer(directory / "tokenizer"),
        language_training(
            sequence_length=LENGTH,
            global_batch_size=global_batch_size,
            micro_batch_size=2,
            eval_samples=eval_samples,
        ),
        rank=rank,
        world_size=world_size,
    )


def rows_of(batches: Iterable[Batch]) -> list[tuple[int, ...]]:
    """Every row that is not padding, its last target included."""
    rows = []
    for batch in batches:
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            if IGNORED_LABEL in targets:
                assert set(targets) == {IGNORED_LABEL}
                continue
            assert inputs[1:] == targets[:-1]
            rows.append((*inputs, targets[-1]))
    return rows


def run(
    directory: Path, *, steps: int, world_size: int, samples_seen: int, state: DataState | None
) -> tuple[list[tuple[int, ...]], DataState]:
    """Rows of all ranks over some steps, and the state of all ranks after them."""
    rows: list[tuple[int, ...]] = []
    after: DataState = {}
    for rank in range(world_size):
        reader = source(directory, rank=rank, world_size=world_size)
        if state is not None:
            reader.restore(state)
        for step in range(steps):
            batches = list(reader.micro_batches(samples_seen + step * BATCH))
            assert len(batches) == reader.num_micro_batches
            assert {tuple(batch.inputs.shape) for batch in batches} == {
                (reader.micro_batch_size, LENGTH)
            }
            rows += rows_of(batches)
        after |= reader.state()
    return rows, after


@pytest.mark.parametrize("files", [1, 9])
def test_stream_changing_ranks_mid_run_reads_what_one_rank_would(
    tmp_path: Path, files: int
) -> None:
    stream(tmp_path, files=files)
    expected, expected_state = run(tmp_path, steps=14, world_size=1, samples_seen=0, state=None)

    rows: list[tuple[int, ...]] = []
    state: DataState | None = None
    done = 0
    for world_size, steps in ((2, 4), (1, 3), (3, 4), (4, 3)):
        more, state = run(
            tmp_path, steps=steps, world_size=world_size, samples_seen=done * BATCH, state=state
        )
        rows += more
        done += steps

    assert Counter(rows) == Counter(expected)
    assert state is not None
    assert state.keys() == expected_state.keys()
    for key, value in expected_state.items():
        assert value == state[key] if isinstance(value, str) else torch.equal(value, state[key])


@pytest.mark.parametrize("files", [1, 4, 9])
def test_stream_lanes_together_read_every_document_once(tmp_path: Path, files: int) -> None:
    names = tuple(str(n) for n in range(files))

    shares = [lane_share(names, lane=lane, lanes=BATCH, seed=1) for lane in range(BATCH)]

    read = Counter(
        (name, row)
        for share in shares
        for name in share.files
        for row in range(24)
        if share.has(row)
    )
    assert read == Counter((name, row) for name in names for row in range(24))


def test_stream_rows_go_on_where_the_row_before_ended(tmp_path: Path) -> None:
    stream(tmp_path, files=1)
    reader = source(tmp_path, global_batch_size=1)

    rows = [row for step in range(40) for row in rows_of(reader.micro_batches(step))]

    assert all(before[-1] == after[0] for before, after in pairwise(rows))
    tokens = [token for row in rows for token in row[:-1]]
    lengths = Counter(token for token in tokens if token < 1000)
    # Documents come in order, whole, each with its end.
    complete = sorted(lengths)[:-1]
    assert complete == list(range(1, len(complete) + 1))
    assert all(lengths[n] == 3 + (7 * (n - 1)) % 23 for n in complete)


def test_stream_state_is_of_the_step_that_was_taken_not_read_ahead(tmp_path: Path) -> None:
    stream(tmp_path, files=4)
    reader = source(tmp_path)
    assert {key: value.tolist() for key, value in reader.state().items() if key != "revision"} == {
        f"lane-{lane:05d}": [0, 0, 0] for lane in range(BATCH)
    }

    list(reader.micro_batches(0))
    _, after_one_step = run(tmp_path, steps=1, world_size=1, samples_seen=0, state=None)

    assert str(reader.state()) == str(after_one_step)


def test_stream_in_use_can_be_taken_back_to_a_state_and_to_no_other_place(tmp_path: Path) -> None:
    stream(tmp_path, files=4)
    reader = source(tmp_path)
    list(reader.micro_batches(0))
    state = reader.state()
    with pytest.raises(ValueError, match="the stream is at sample 6, not 12"):
        list(reader.micro_batches(12))
    expected = rows_of(reader.micro_batches(BATCH))
    list(reader.micro_batches(2 * BATCH))

    reader.restore(state)

    assert rows_of(reader.micro_batches(BATCH)) == expected


def test_stream_evaluates_on_held_out_files_the_same_rows_each_time(tmp_path: Path) -> None:
    stream(tmp_path, files=4, held_out=True)
    readers = [source(tmp_path, rank=rank, world_size=2, eval_samples=3) for rank in range(2)]

    evaluated = [list(reader.evaluation_batches()) for reader in readers]
    again = [rows_of(reader.evaluation_batches()) for reader in readers]

    assert len({len(batches) for batches in evaluated}) == 1
    rows = [row for batches in evaluated for row in rows_of(batches)]
    # 4 documents of 9 numbers and an end, cut into 3 sequences.
    assert sorted(rows) == [tuple([1000 + n] * 9 + [4095, 1001 + n]) for n in range(3)]
    assert [rows_of(batches) for batches in evaluated] == again
    trained = [row for step in range(20) for row in rows_of(readers[0].micro_batches(step * BATCH))]
    assert not {token for row in trained for token in row} & set(range(1000, 1004))


def test_stream_without_held_out_files_keeps_its_last_file_for_evaluation(tmp_path: Path) -> None:
    stream(tmp_path, files=4)
    last = set(range(4, DOCUMENTS + 1, 4))
    reader = source(tmp_path, eval_samples=2)

    evaluated = rows_of(reader.evaluation_batches())
    trained = [row for step in range(80) for row in rows_of(reader.micro_batches(step * BATCH))]

    assert {token for row in evaluated for token in row if token < 1000} <= last
    assert {token for row in trained for token in row if token < 1000}.isdisjoint(last)


def test_stream_that_cannot_feed_all_its_lanes_or_ranks_says_what_to_do(tmp_path: Path) -> None:
    stream(tmp_path, files=1, documents=4)

    with pytest.raises(BadParameter, match="the stream has too few documents for its lanes; pack"):
        list(source(tmp_path).micro_batches(0))
    with pytest.raises(BadParameter, match="feeds at most 6 ranks, not 7; use a multiple of 7"):
        source(tmp_path, rank=6, world_size=7)
    assert (num_lanes(1024), num_lanes(509)) == (512, 509)


def test_stream_malformed_file_is_reported_in_the_training_loop(tmp_path: Path) -> None:
    stream(tmp_path, files=4)
    path = tmp_path / "text" / "part-02.jsonl"
    path.write_text(path.read_text() + "{broken\n")

    reader = source(tmp_path)

    with pytest.raises(BadParameter, match=r"part-02\.jsonl:\d+ is not JSON"):
        deque((list(reader.micro_batches(step * BATCH)) for step in range(1000)), maxlen=0)


def test_stream_that_is_dropped_ends_its_thread(tmp_path: Path) -> None:
    stream(tmp_path, files=4)
    before = set(threading.enumerate())
    reader = source(tmp_path)
    list(reader.micro_batches(0))
    (thread,) = set(threading.enumerate()) - before

    del reader
    gc.collect()
    thread.join(timeout=PATIENCE_S)

    assert not thread.is_alive()
