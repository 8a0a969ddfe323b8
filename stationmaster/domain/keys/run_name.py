"""`name=NAME`: what a run is called in its channel."""

from __future__ import annotations

import re
from typing import Final

from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys.key import Family, Key, Part, Typed

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")

RUN_NAME: Final = Key(
    name="name",
    help="what the run is called: on its card, in lists, and in commands about it",
    meanings=("run_name", "job_name", "title", "label"),
    typed=lambda options: options.name,
)


class Option(Part):
    """What the run is called."""

    name: str = ""
    """"" where its recipe, with what was typed, is all that it is called."""


def read(typed: Typed) -> Option:
    """Read the name."""
    value = typed.get(RUN_NAME)
    if value is None:
        return Option()
    if _NAME.fullmatch(value) is None:
        raise BadCommand(
            f"name={value[:80]} is not accepted: expected 1 to 40 letters, digits, dots, dashes "
            "and underscores, a letter or digit first"
        )
    return Option(name=value)


FAMILY: Final = Family(keys=(RUN_NAME,), read=read)
