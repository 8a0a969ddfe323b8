"""Finds the rules that hold for one piece of text; fast on the many for which none holds.

A log may have millions of lines, most of which differ from others in their figures only. So a line
without its digits is searched for hints, once for all lines of the same words; patterns are tried
where a hint was found. Hints are words of the patterns: every line that can match has one of them.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from re import _parser  # type: ignore[attr-defined]  # no public module parses a pattern
from typing import Any, Final

from stationmaster.diagnosis import (
    account_rules,
    cluster_rules,
    megatron_rules,
    network_rules,
    node_rules,
    product_rules,
    program_rules,
    stack_rules,
)
from stationmaster.diagnosis.rules import Rank, Rule, Where

# In the order in which those of one rank are preferred.
RULES: Final[tuple[Rule, ...]] = (
    *node_rules.RULES,
    *account_rules.RULES,
    *cluster_rules.RULES,
    *megatron_rules.RULES,
    *program_rules.RULES,
    *network_rules.RULES,
    *stack_rules.RULES,
    *product_rules.RULES,
)
RULE: Final[Mapping[str, Rule]] = {rule.id: rule for rule in RULES}

MAX_TEXT: Final = 4000  # of a line; what comes after it is not searched
MAX_EVIDENCE: Final = 300
_MAX_FIELD: Final = 160

_WORDS: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase, string.digits)
_REMEMBERED: Final = 4096  # lines whose hints are kept


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that holds for a text, and the values of its pattern's groups."""

    rule: Rule
    fields: Mapping[str, str]
    start: int
    """The place of the match in the text."""


def matches(text: str, where: frozenset[Where]) -> list[Match]:
    """List the rules that hold for `text`, which is one of `where`; only those of the lowest rank.

    What a line says of a consequence is not wanted when the same line names the cause.
    """
    hints = _hints(text[:MAX_TEXT].translate(_WORDS))
    if not hints:
        return []
    found = list(_matches(text[:MAX_TEXT], hints, where))
    shown = [match.rule.rank for match in found if match.rule.is_shown]
    least = min(shown, default=Rank.NOTE)
    return [match for match in found if match.rule.rank <= least or not match.rule.is_shown]


def evidence_of(text: str, start: int) -> str:
    """Cut a line around what matched, to at most MAX_EVIDENCE printable characters."""
    text = text.strip()
    if len(text) > MAX_EVIDENCE:
        begin = max(0, min(start - MAX_EVIDENCE // 3, len(text) - MAX_EVIDENCE))
        text = text[begin : begin + MAX_EVIDENCE]
    return "".join(each if each.isprintable() else " " for each in text)


def _matches(text: str, hints: Sequence[str], where: frozenset[Where]) -> Iterator[Match]:
    seen = set()
    for hint in hints:
        for index in _rules_of_hints()[hint]:
            rule = RULES[index]
            if index in seen or rule.where.isdisjoint(where):
                continue
            seen.add(index)
            match = _compiled(rule.pattern).search(text)
            if match is not None and not (rule.not_in and _compiled(rule.not_in).search(text)):
                fields = {
                    key: (value or "")[:_MAX_FIELD] for key, value in match.groupdict().items()
                }
                yield Match(rule, fields, match.start())


@lru_cache(_REMEMBERED)
def _hints(words: str) -> tuple[str, ...]:
    return tuple(hint for hint in _rules_of_hints() if hint in words)


@cache
def _rules_of_hints() -> Mapping[str, tuple[int, ...]]:
    rules: dict[str, tuple[int, ...]] = {}
    for index, rule in enumerate(RULES):
        for hint in hints_of(rule.pattern):
            rules[hint] = (*rules.get(hint, ()), index)
    return rules


def hints_of(pattern: str) -> frozenset[str]:
    """List words in lower case, without digits, of which each text that can match has one.

    Raises:
        ValueError: a text without any word can match.
    """
    hints = _needed(_parser.parse(pattern))
    if not hints:
        raise ValueError(f"{pattern} has no word that is in every text that it matches")
    return hints


def _needed(parsed: Any) -> frozenset[str]:
    """Choose the words of the part of a sequence whose shortest word is the longest."""
    choices, run = [frozenset[str]()], ""
    for operation, argument in [*parsed, (None, None)]:
        if operation is _parser.LITERAL:
            run += chr(argument).translate(_WORDS)
            continue
        choices.append(frozenset({run} - {""}))
        run = ""
        if operation is _parser.SUBPATTERN:
            choices.append(_needed(argument[3]))
        elif operation is _parser.BRANCH:
            ways = [_needed(way) for way in argument[1]]
            choices.append(frozenset[str]().union(*ways) if all(ways) else frozenset())
        elif operation is _parser.MAX_REPEAT and argument[0] > 0:
            choices.append(_needed(argument[2]))
    return max(choices, key=lambda words: min(map(len, words), default=0))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)
