"""Each rule holds for what is really printed, and for nothing that only comes near."""

from __future__ import annotations

import re
import string
import time
from pathlib import Path

import pytest
import yaml

from stationmaster.cli.main import make_parser
from stationmaster.diagnosis.explaining import Context, explain
from stationmaster.diagnosis.matching import MAX_TEXT, RULE, RULES, hints_of, matches
from stationmaster.diagnosis.reading import read_source
from stationmaster.diagnosis.rules import Rank, Severity, Where
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.commands.table import TYPED_SUBCOMMANDS
from stationmaster.domain.keys.names import KEY_MEANINGS, key_names

LINES = yaml.safe_load((Path(__file__).parent / "rule_lines.yaml").read_text())
HEALTHY = sorted((Path(__file__).parent / "healthy").iterdir())
ANYWHERE = frozenset(Where)
KEYS = {*KEY_MEANINGS, *(key for recipe in CATALOGUE.values() for key in key_names(recipe))}


def rules_of(text, where=ANYWHERE):
    return [match.rule.id for match in matches(text, where)]


def test_every_rule_has_a_line_that_it_holds_for_and_one_that_it_does_not():
    assert set(LINES) == set(RULE)
    assert len(RULE) == len(RULES)
    assert all(each["holds"] and each["near"] for each in LINES.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_holds_for_its_lines_and_not_for_those_that_come_near(rule):
    held, near = LINES[rule.id]["holds"], LINES[rule.id]["near"]

    assert [rule.id in rules_of(text, rule.where) for text in held] == [True] * len(held)
    assert [rule.id in rules_of(text) for text in near] == [False] * len(near)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_is_well_formed(rule):
    words = [f"{rule.diagnosis} {rule.remedy}"]
    fields = {name for text in words for _, name, _, _ in string.Formatter().parse(text) if name}

    assert fields <= set(re.compile(rule.pattern).groupindex) | set(Context.__slots__)
    assert min(len(hint) for hint in hints_of(rule.pattern)) > 3
    assert rule.source
    assert not rule.diagnosis.endswith(".")
    assert not rule.unless or rule.unless in RULE
    assert (rule.rank >= Rank.SLOW) <= (rule.severity is not Severity.ERROR)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_pattern_takes_no_longer_for_lines_that_are_made_against_it(rule):
    patterns = [re.compile(each, re.IGNORECASE) for each in (rule.pattern, rule.not_in)]
    texts = LINES[rule.id]["holds"] + LINES[rule.id]["near"]
    begun = [text[: len(text) * part // 4] for text in texts for part in (1, 2, 3, 4)]

    started = time.process_time()
    for begin in begun:
        for more in (" ", "a", "1", "a ", begin or "-"):
            for pattern in patterns:
                pattern.search((begin + more * MAX_TEXT)[:MAX_TEXT])

    # A hundredth of it is usual; one that goes back over its own repetitions takes many times it.
    assert time.process_time() - started < 0.5


def test_remedies_name_commands_and_keys_that_exist():
    verbs = {row.name for row in TYPED_SUBCOMMANDS}
    commands = make_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for rule in RULES:
        typed = re.findall(r"/train ([\w.{}-]+)", rule.remedy)
        assert {word for word in typed if word not in {"RECIPE", "{recipe}"}} <= {
            verb.split()[0] for verb in verbs
        }, rule.id
        ours = set(re.findall(r"stationmaster ([\w-]+) ", rule.remedy))
        assert ours <= set(commands), rule.id
        channel = re.sub(r"`(?:kubectl|aws) [^`]*`", "", rule.remedy)
        assert set(re.findall(r"(?<![\w/-])([a-z][a-z_]+)=", channel)) <= KEYS, rule.id


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.name)
def test_no_rule_holds_for_what_healthy_runs_print(path):
    source = read_source(path.name, path.read_text())

    assert source.lines or source.seen or "Normal" in path.read_text()
    assert explain([source]) == []
