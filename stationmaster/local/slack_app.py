"""How the product's app looks in the local workspace: its command, hints and sample commands."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.entries import CATALOGUE as RECIPES
from stationmaster.domain.commands.table import (
    APP_NAME,
    COMMAND,
    DESCRIPTION,
    START,
    SUBCOMMANDS,
    USAGE_HINT,
    Subcommand,
    Takes,
)
from stationmaster.domain.keys.key import Key
from stationmaster.domain.keys.names import CLUSTER_KEYS, keys_of
from stationmaster.local.slack.config import (
    ArgumentHint,
    Choice,
    SampleCommand,
    SlackAppConfig,
    SlashCommand,
)

# What an empty channel offers to click on: the commands that need no run.
_SAMPLES: Final = (START, SUBCOMMANDS["plan"], SUBCOMMANDS["recipes"], SUBCOMMANDS["help"])


def app_config() -> SlackAppConfig:
    """Return the configuration of the app, from the catalogue and the table of commands."""
    recipes = [Choice(recipe.name, recipe.summary) for recipe in RECIPES.values()]
    words = [*recipes, *(Choice(row.name, row.help) for row in SUBCOMMANDS.values())]
    return SlackAppConfig(
        bot_name=APP_NAME,
        tagline="distributed training, one command at a time",
        commands=[
            SlashCommand(
                COMMAND,
                description=DESCRIPTION,
                usage_hint=USAGE_HINT,
                arguments=[
                    ArgumentHint("recipe or subcommand", kind="word", choices=words),
                    ArgumentHint("recipe", kind="word", choices=recipes, after=_before_recipes()),
                    *_group_hints(),
                    *_key_hints(),
                ],
            )
        ],
        sample_commands=[SampleCommand(f"{COMMAND} {row.example}", row.help) for row in _SAMPLES],
    )


def _before_recipes() -> list[str]:
    """Return the subcommands that a recipe follows."""
    return [row.name for row in SUBCOMMANDS.values() if row.takes is Takes.START]


def _groups() -> dict[str, Subcommand]:
    """Return the subcommands that another word follows."""
    return {row.name: row for row in SUBCOMMANDS.values() if row.rows}


def _group_hints() -> list[ArgumentHint]:
    """Return the second words of a group, each after its first one."""
    return [
        ArgumentHint(
            f"{name} ...",
            kind="word",
            choices=[Choice(word, row.help) for word, row in group.rows.items()],
            after=[name],
        )
        for name, group in _groups().items()
    ]


def _key_hints() -> list[ArgumentHint]:
    """Return each key, after the recipes that take it and where a recipe is the second word."""
    keys: dict[str, Key] = {}
    after: dict[str, list[str]] = {}
    for recipe in RECIPES.values():
        for key in keys_of(recipe):
            keys.setdefault(key.name, key)
            after.setdefault(key.name, _before_recipes()).append(recipe.name)
    for key in CLUSTER_KEYS.values():
        keys.setdefault(key.name, key)
        after.setdefault(key.name, []).extend(_groups())
    return [
        ArgumentHint(name, hint=key.help, choices=[*map(Choice, key.choices)], after=after[name])
        for name, key in keys.items()
    ]
