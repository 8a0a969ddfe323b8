"""The app as the local workspace shows it: hints drawn from the product's table of commands."""

from __future__ import annotations

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.table import COMMAND, SUBCOMMANDS
from stationmaster.domain.keys.names import CLUSTER_KEYS, key_names
from stationmaster.local.slack_app import app_config

TRAIN = app_config().commands[0]
KEYS = {argument.name: argument for argument in TRAIN.arguments if argument.kind == "key"}


def test_first_word_offers_every_recipe_and_subcommand():
    first = next(word for word in TRAIN.arguments if word.kind == "word" and not word.after)

    assert [choice.value for choice in first.choices] == [*CATALOGUE, *SUBCOMMANDS]
    assert all(choice.description for choice in first.choices)


def test_cluster_is_followed_by_its_words_and_the_keys_of_a_new_one():
    second = next(word for word in TRAIN.arguments if list(word.after) == ["cluster"])

    assert [choice.value for choice in second.choices] == list(SUBCOMMANDS["cluster"].rows)
    assert all(choice.description for choice in second.choices)
    offered = {key for key, argument in KEYS.items() if "cluster" in argument.after}
    assert offered == set(CLUSTER_KEYS)


@pytest.mark.parametrize("name", CATALOGUE)
def test_keys_offered_after_a_recipe_are_those_it_takes(name):
    offered = {key for key, argument in KEYS.items() if name in argument.after}

    assert offered == set(key_names(CATALOGUE[name]))
    assert all("plan" in KEYS[key].after for key in offered)
    assert all("stop" not in KEYS[key].after for key in offered)


def test_sample_commands_are_understood():
    samples = [sample.text for sample in app_config().sample_commands]

    assert samples[0] == f"{COMMAND} tiny-llama nodes=2 steps=60"
    for text in samples:
        parse_command(text.removeprefix(COMMAND))
