"""The words after the subcommands that look at several runs, or at what people did. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from stationmaster.domain.commands.parameters import shorten
from stationmaster.domain.durations import duration_of
from stationmaster.domain.errors import BadCommand

# As a person types it, and as Slack sends it where it escapes names.
_MENTION: Final = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^>]*)?>|@([\w.-]+)")


def read_audit(words: Sequence[str]) -> tuple[str, str, int]:
    """Read what the audit is searched for: a run or cluster, a person, since when; each once."""
    found: dict[str, str] = {}
    for word in words:
        person = _person(word)
        key, value = ("about", word) if person is None else ("person", person)
        if "=" in word:
            key, _, value = word.partition("=")
        if key in found or key not in ("about", "person", "since"):
            raise BadCommand(
                f'/train audit takes a run, @person and since=7d, got "{shorten(" ".join(words))}"',
                suggestion="/train audit since=7d",
            )
        found[key] = value
    since_s = duration_of("since", found["since"]) if "since" in found else 0
    return found.get("about", ""), found.get("person", ""), since_s


def _person(word: str) -> str | None:
    """Read a mention as the id or the name of a person; None where it is none."""
    mention = _MENTION.fullmatch(word)
    return None if mention is None else "".join(mention.groups(""))
