"""The list of thorough tests names what is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LINES = [
    line
    for line in (TESTS / "thorough.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("line", LINES)
def test_line_of_the_thorough_list_names_a_test_that_is_there(line: str):
    place, _, test = line.partition("::")

    assert (TESTS / place).exists()
    if test:
        functions = ast.parse((TESTS / place).read_text()).body
        assert test.partition("[")[0] in {
            each.name for each in functions if isinstance(each, ast.FunctionDef)
        }


def test_thorough_list_names_nothing_twice():
    assert len(LINES) == len(set(LINES))
    inside = [line for line in LINES for other in LINES if line != other and line.startswith(other)]
    assert inside == []
