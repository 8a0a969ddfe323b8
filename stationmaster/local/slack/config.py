"""What the local Slack endpoint knows of the app it hosts and the workspace it shows.

The composition of the local mode builds a `SlackAppConfig` from the bot's manifest; the endpoint
and the page read it. It must not know the product: recipes and keys arrive here as plain hints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Choice:
    """One value that the autocomplete popover offers for an argument."""

    value: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class ArgumentHint:
    """One argument of a slash command, as the composer explains it while it is typed.

    `kind` "word" is the first word after the command (a recipe or a subcommand), or the second one
    where `after` names the first; "key" is a `name=value` argument, which `after` limits to some
    first words.
    """

    name: str
    kind: Literal["word", "key"] = "key"
    hint: str = ""
    choices: Sequence[Choice] = ()
    after: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A slash command of the app, as its manifest declares it."""

    command: str
    description: str
    usage_hint: str = ""
    arguments: Sequence[ArgumentHint] = ()


@dataclass(frozen=True, slots=True)
class SampleCommand:
    """A command that the empty channel offers as a one-click chip."""

    text: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class SlackAppConfig:
    """The app that lives in the local workspace."""

    bot_name: str
    commands: Sequence[SlashCommand]
    sample_commands: Sequence[SampleCommand] = ()
    tagline: str = ""
