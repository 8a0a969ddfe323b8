"""Durations as they are typed and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.durations import LONGEST_S, read_duration, respelled, typed_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("7d", LONGEST_S),
        ("1s", 1),
        ("0s", None),
        ("8d", None),
        ("2", None),
        ("2H", None),
        ("1.5h", None),
        ("2h30m", None),
        ("", None),
        ("\u0662h", None),
        ("9" * 40 + "s", None),
    ],
)
def test_duration_is_a_whole_number_and_one_unit(text, seconds):
    assert read_duration(text) == seconds


@given(st.integers(1, LONGEST_S))
def test_duration_that_was_read_is_typed_the_same(seconds):
    assert read_duration(typed_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "spelled"),
    [("2H", "2h"), ("2 hours", "2h"), ("10min", "10m"), ("30sec", "30s"), ("1 Day", "1d")],
)
def test_duration_in_other_letters_is_respelled(text, spelled):
    assert respelled(text) == spelled
    assert respelled("soon") is None
    assert respelled("9d") is None
