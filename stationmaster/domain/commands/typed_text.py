"""Typed text as words: what chat clients do to quotes and dashes is undone first. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from stationmaster.domain.commands.parameters import shorten
from stationmaster.domain.errors import BadCommand

# Composers turn "..." into curly quotes and -- into dashes; pasting brings no-break spaces.
_TYPOGRAPHY: Final = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201a": "'",
        "\u201b": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u201e": '"',
        "\u201f": '"',
        "\u2010": "-",
        "\u2011": "-",
        "\u2012": "-",
        "\u2013": "-",
        "\u2014": "--",
        "\u2212": "-",
        "\u00a0": " ",
        "\u2007": " ",
        "\u202f": " ",
        "\u200b": "",
        "\ufeff": "",
    }
)


def split_words(text: str) -> list[str]:
    """Return the words of a text, split as a shell does.

    Raises:
        BadCommand: a quote is not closed.
    """
    try:
        return shlex.split(text.translate(_TYPOGRAPHY))
    except ValueError as exc:
        raise BadCommand(
            f"a quote is opened and not closed in: {shorten(text)}; close it or leave it out"
        ) from exc
