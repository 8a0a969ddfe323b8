"""README.md and docs/recipes.md list each recipe of the catalogue, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from stationmaster.domain.catalogue.entries import CATALOGUE

ROOT = Path(__file__).parents[2]


def test_readme_names_every_recipe_once() -> None:
    table = (ROOT / "README.md").read_text().split("## What it trains")[1].split("\n## ")[0]
    first_column = "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))

    named = [
        each for each in re.findall(r"`([^`]+)`", first_column) if re.match(r"[a-z0-9.-]+$", each)
    ]

    assert sorted(named) == sorted(CATALOGUE)


def test_page_of_recipes_shows_what_the_command_prints() -> None:
    document = (ROOT / "docs" / "recipes.md").read_text()
    printed = document.split("$ .venv/bin/stationmaster recipes\n")[1].split("```")[0]

    listed = re.findall(r"^ ([a-z][a-z0-9.-]+) ", printed, re.MULTILINE)

    assert listed[:1] == ["recipe"]
    assert sorted(listed[1:]) == sorted(CATALOGUE)
