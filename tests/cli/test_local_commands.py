"""Which commands `local run` takes for questions: they are over as soon as they are answered."""

from __future__ import annotations

from typing import get_args

from stationmaster.cli.local_commands import is_question
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import Command

ASKING = (
    "help",
    "recipes",
    "plan tiny-llama",
    "preflight",
    "preflight llama2-7b nodes=2",
    "list",
    "status",
    "logs",
    "cluster list",
    "cluster show small",
)


def test_every_command_that_shows_or_lists_is_a_question() -> None:
    kinds = {each for each in get_args(Command) if each.__name__.startswith(("Show", "List"))}

    assert [text for text in ASKING if not is_question(text)] == []
    assert {type(parse_command(text)) for text in ASKING} == kinds


def test_command_that_starts_or_ends_something_is_no_question() -> None:
    for text in ("tiny-llama", "stop", "cluster create small", "cluster delete small", "nonsense"):
        assert not is_question(text), text
