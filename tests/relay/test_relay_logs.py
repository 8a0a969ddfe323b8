"""Bytes of log streams turned into lines, each once, over cuts and resumes."""

from __future__ import annotations

import itertools
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest
from containers import facts
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.progress_lines import ProgressLine
from stationmaster.relay.logs import LineAssembler, LogCursor, LogPipeline, normalise_stamp
from stationmaster.relay.parsing import LineInterpreter

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def stamp(microseconds):
    moment = START + timedelta(microseconds=microseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


def assemble(*chunks):
    assembler = LineAssembler()
    return [text for chunk in chunks for _, text in assembler.feed(chunk)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05.100000000Z"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000000Z"),
        ("2026-01-02T03:04:05.123456789+02:00", "2026-01-02T01:04:05.123456789Z"),
        ("2026-01-02", None),
        ("", None),
        ("9999-99-99T99:99:99+02:00", None),
    ],
)
def test_normalise_stamp_gives_utc_with_nine_decimals(text, expected):
    assert normalise_stamp(text) == expected


@given(st.lists(st.integers(0, 400), max_size=12))
def test_feed_cut_anywhere_gives_the_same_lines(cuts):
    data = b"".join(
        f"{stamp(n)} line {n} \u00e9\r\n".encode() + f"{stamp(n)} a{n}\rb{n}\rc{n}\n".encode()
        for n in range(5)
    )
    borders = [0, *sorted(cuts), len(data)]

    texts = assemble(*(data[a:b] for a, b in itertools.pairwise(borders)))

    expected = [t for n in range(5) for t in (f"line {n} \u00e9", f"a{n}", f"b{n}", f"c{n}")]
    assert texts == expected


def test_feed_progress_bar_is_reported_before_its_line_ends():
    assert assemble(f"{stamp(0)} 10%\r20%\r30".encode()) == ["10%", "20%"]


def test_feed_colours_are_taken_out():
    assert assemble(f"{stamp(0)} \x1b[31mred\x1b[0m\n".encode()) == ["red"]


def test_feed_endless_line_is_cut_and_memory_stays_flat():
    assembler = LineAssembler()
    list(assembler.feed(f"{stamp(0)} ".encode()))

    tracemalloc.start()
    for _ in range(500):
        assert list(assembler.feed(b"x" * 65_536)) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    (line,) = assembler.feed(b"\n")
    assert len(line[1]) <= 16_384
    assert peak < 1_000_000


def test_finish_gives_a_last_line_without_an_end():
    assembler = LineAssembler()
    assert list(assembler.feed(f"{stamp(0)} the end".encode())) == []

    assert [text for _, text in assembler.finish()] == ["the end"]


@given(
    steps=st.lists(st.sampled_from([0, 1, 400_000, 1_100_000, -200]), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    server_filters=st.booleans(),
)
def test_cursor_any_cuts_tell_every_line_once(steps, cuts, server_filters):
    moments, now = [], 1_000_000
    for step in steps:  # equal stamps and small steps back are among them
        now += step
        moments.append(now)
    lines = [(normalise_stamp(stamp(moment)), n) for n, moment in enumerate(moments)]
    cursor = LogCursor()
    reported = []

    for cut in [*sorted(cuts), len(lines)]:
        since = cursor.since
        cursor.begin_stream()
        for at, n in lines[:cut]:
            filtered = server_filters and since is not None and at[:19] < since[:19]
            if not filtered and cursor.accept(at) is not None:
                reported.append(n)

    assert reported == list(range(len(lines)))


def test_cursor_reading_all_again_gives_the_same_ordinals():
    stamps = [normalise_stamp(stamp(n // 3)) for n in range(30)]

    first, second = LogCursor(), LogCursor()

    assert [first.accept(s) for s in stamps] == [second.accept(s) for s in stamps]
    assert [LogCursor().accept(s) for s in stamps[:1]] == [0]


def test_cursor_long_stream_keeps_memory_bounded():
    cursor = LogCursor()

    for n in range(100_000):
        cursor.accept(normalise_stamp(stamp(n * 1000)))

    assert len(cursor._reported) < 20_000


def test_pipeline_resumed_stream_tells_only_what_is_new():
    kept = []
    pipeline = LogPipeline(LineInterpreter(facts()), keep_line=kept.append)
    reported = [ProgressLine(seq=n, step=n, total_steps=9, loss_nats=1.0) for n in range(6)]
    lines = [f"{stamp(n * 10)} {line.text()}\n".encode() for n, line in enumerate(reported)]

    pipeline.begin_stream(container_run=0)
    first = pipeline.feed(b"".join(lines[:3]) + lines[3][:40])
    pipeline.begin_stream(container_run=0)
    second = pipeline.feed(b"".join(lines))

    assert [event.step for event in first + second] == [0, 1, 2, 3, 4, 5]
    assert len(kept) == 6
