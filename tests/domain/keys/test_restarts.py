"""restarts=: read, refused, explained and typed again."""

from __future__ import annotations

import pytest

from tests.support.typed import refused, saved, start_of


@pytest.mark.parametrize(
    ("number", "note"),
    [
        (0, "restarts=0: a job that has failed is not started again, whatever the cause"),
        (3, "restarts=3: a job that has failed is started again, 3 times at most, whatever the "),
    ],
)
def test_number_is_read_explained_and_typed_again(number: int, note: str) -> None:
    start = start_of(f"tiny-llama restarts={number}")

    assert start.options.restarts == number
    assert start.plan.warnings[0].startswith(note)
    assert start.words == f"tiny-llama restarts={number}"
    assert start_of(start.words) == start


@pytest.mark.parametrize("value", ["-1", "21", "x", "1.5", "\u0663"])
def test_other_values_are_refused_and_left_out_of_the_suggestion(value: str) -> None:
    error = refused(f"tiny-llama restarts={value}")

    assert "expected a whole number from 0 to 20" in str(error)
    assert error.suggestion == "/train plan tiny-llama"


def test_resume_types_it_again() -> None:
    assert saved(restarts=2).words["restarts"] == "2"
