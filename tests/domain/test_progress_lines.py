"""The one schema of progress lines: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.outside import MAX_COUNT
from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    ProgressLine,
    ResumedLine,
    StartedLine,
    read_line,
)

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
FIGURE = st.floats()
COUNT = st.integers(0, MAX_COUNT - 1)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LINES = (
    st.builds(StartedLine, total_steps=COUNT, world_size=COUNT, recipe=WORDS, dataset_tokens=COUNT)
    | st.builds(
        ProgressLine,
        seq=COUNT,
        at=st.just(AT),
        step=COUNT,
        total_steps=COUNT,
        loss_nats=FIGURE,
        mfu=st.none() | FIGURE,
    )
    | st.builds(EvaluatedLine, step=COUNT, loss_nats=FIGURE, top1=st.none() | FIGURE)
    | st.builds(CheckpointSavedLine, step=COUNT, path=WORDS, duration_s=FIGURE)
    | st.builds(ResumedLine, run_id=WORDS, step=COUNT, passed_over=WORDS)
    | st.builds(FinishedLine, step=COUNT, loss_nats=st.none() | FIGURE)
    | st.builds(FailedLine, reason=WORDS, error=WORDS, restarting=st.booleans())
)


def progress(**fields: object) -> str:
    made = {"stationmaster": 1, "kind": "progress", "seq": 1, "step": 3, "total_steps": 9}
    return json.dumps(made | {"loss_nats": 8.25} | fields)


@given(LINES)
def test_every_line_is_read_as_it_was_written(line):
    read = read_line(line.text())

    assert type(read) is type(line)
    assert read.text() == line.text()


def test_head_stands_first_and_fields_that_were_not_given_are_absent():
    line = ProgressLine(
        step=1, total_steps=2, loss_nats=8.5, mfu=None, at=AT, seq=7, run_id="tiny-1"
    )

    assert line.text() == (
        '{"stationmaster":1,"kind":"progress","run_id":"tiny-1","seq":7,'
        '"at":"2026-01-02T03:04:05.678+00:00","step":1,"total_steps":2,"loss_nats":8.5,"mfu":null}'
    )


@pytest.mark.parametrize(
    ("loss", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_figure_that_is_not_finite_travels_as_a_string(loss, word):
    line = ProgressLine(step=1, total_steps=2, loss_nats=loss)

    assert json.loads(line.text())["loss_nats"] == word
    for text in (line.text(), line.text().replace(f'"{word}"', word)):
        assert repr(read_line(text).loss_nats) == repr(loss)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mfu", "0.4"),
        ("mfu", True),
        ("grad_norm", [1.0]),
        ("seq", -1),
        ("seq", MAX_COUNT),
        ("at", "2026-01-02T03:04:05"),
        ("at", 1_700_000_000),
        ("at", "0001-01-01T00:00:00Z"),
        ("at", "9999-12-31T23:59:59Z"),
        ("run_id", 7),
    ],
)
def test_field_of_a_wrong_type_or_range_is_left_out(field, value):
    line = read_line(progress(**{field: value}))

    assert (line.step, line.loss_nats, getattr(line, field)) == (3, 8.25, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loading the tokenizer",
        '["stationmaster"]',
        '{"stationmaster":1',
        '{"kind":"failed","reason":"\\"stationmaster\\""}',
        '{"kind":"failed","reason":"of no schema","error":"\\"stationmaster\\":1"}',
        progress(stationmaster=2),
        progress(stationmaster="1"),
        progress(kind="else"),
        progress(kind=["progress"]),
        progress(loss_nats="8.2"),
        progress(loss_nats=True),
        progress(loss_nats=10**400),
        progress(step=-1),
        progress(step=1.5),
        progress(total_steps=MAX_COUNT),
        '{"stationmaster":1,"kind":"progress","a":' + "[" * 100_000,
        '{"stationmaster":1,"kind":"failed","reason":"\\ud800"}',
    ],
)
def test_text_that_is_no_whole_line_of_ours_is_none(text):
    assert read_line(text) is None


def test_line_behind_a_launchers_prefix_is_read():
    assert read_line("[default0]: " + progress()).step == 3


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text):
    assert read_line(progress()[:40] + text) is None or text.endswith("}")
