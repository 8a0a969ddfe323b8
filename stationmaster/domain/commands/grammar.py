"""Reads the text of a slash command: typed words in, a command or one helpful error out.

`/train RECIPE [nodes=N] [instance=TYPE] [key=value ...]` starts a run; everything else is a
subcommand. Chat clients turn quotes and dashes into typographic ones, so those are undone first.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.hub import HUB_PREFIX, repository_of
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.commands.parameters import corrected, read_pairs, read_values, shorten
from stationmaster.domain.errors import (
    BadCommand,
    NotAvailable,
    NotPossibleNow,
    UserError,
)
from stationmaster.domain.ids import RunId
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.vocabulary import (
    INSTEAD,
    NOT_YET,
    START,
    SUBCOMMANDS,
    recipe_meant,
    subcommand_meant,
)

MAX_COMMAND_CHARACTERS: Final = 2_000

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


@dataclass(frozen=True)
class StartRun:
    """Start training; `nodes` and `instance_type` are None where the recipe's default applies."""

    recipe: str
    nodes: int | None = None
    instance_type: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    model: LanguageModel | None = None
    """What the hub said of hf:ORG/MODEL; None for a recipe of the catalogue."""

    @property
    def words(self) -> str:
        """The request as it could be typed after /train, each value once."""
        words = [self.recipe]
        if self.nodes is not None:
            words.append(f"nodes={self.nodes}")
        if self.instance_type is not None:
            words.append(f"instance={self.instance_type}")
        return " ".join([*words, *(f"{key}={value}" for key, value in self.overrides.items())])

    def changed(self, words: str) -> StartRun:
        """The same request with the key=value words of a plan's suggestion in place of its own."""
        values = read_pairs(words.split())
        nodes, instance_type = values.pop("nodes", None), values.pop("instance", None)
        return replace(
            self,
            nodes=int(nodes) if nodes else self.nodes,
            instance_type=instance_type or self.instance_type,
            overrides=self.overrides | values,
        )


@dataclass(frozen=True)
class ShowPlan:
    """Show what starting would create and cost, and create nothing."""

    request: StartRun


@dataclass(frozen=True)
class ShowHelp:
    """Show how to use the command."""


@dataclass(frozen=True)
class ShowRecipes:
    """List the catalogue."""


@dataclass(frozen=True)
class ListRuns:
    """List the newest runs."""


@dataclass(frozen=True)
class ShowStatus:
    """Show one run; None means the newest of the channel."""

    run_id: RunId | None = None


@dataclass(frozen=True)
class ShowLogs:
    """Show the last log lines of a run's pods."""

    run_id: RunId | None = None


@dataclass(frozen=True)
class StopRun:
    """Stop a run and tear it down."""

    run_id: RunId | None = None


Command = StartRun | ShowPlan | ShowHelp | ShowRecipes | ListRuns | ShowStatus | ShowLogs | StopRun


LookUp = Callable[[str], LanguageModel]
"""Asks the Hugging Face hub what ORG/MODEL is; raises a UserError that says why it cannot."""


def no_hub(repository: str) -> LanguageModel:
    """Look nothing up: where no hub is at hand, or is meant to be asked.

    Raises:
        NotPossibleNow: always.
    """
    raise NotPossibleNow(
        f"{repository} cannot be looked up on the Hugging Face hub from here; use a recipe of the "
        "catalogue"
    )


def parse_command(text: str, *, look_up: LookUp = no_hub) -> Command:
    """Read what a person typed after `/train`; `look_up` is called for hf:ORG/MODEL only.

    Raises:
        UserError: one sentence that names the value, what was expected, and where possible a
            corrected command to paste in `suggestion`.
    """
    if len(text) > MAX_COMMAND_CHARACTERS:
        raise BadCommand(
            f"the command has {len(text):,} characters; at most {MAX_COMMAND_CHARACTERS:,} are read"
        )
    words = _split(text.translate(_TYPOGRAPHY))
    if not words:
        return ShowHelp()
    first, rest = words[0], words[1:]
    match first.lower():
        case "help":
            return ShowHelp()
        case "recipes":
            return _without_arguments(first, rest, ShowRecipes())
        case "list":
            return _without_arguments(first, rest, ListRuns())
        case "plan":
            return ShowPlan(_parse_start(rest, prefix="plan ", look_up=look_up))
        case "status":
            return ShowStatus(_optional_run(first, rest))
        case "logs":
            return ShowLogs(_optional_run(first, rest))
        case "stop":
            return StopRun(_optional_run(first, rest))
        case _:
            if first not in CATALOGUE:
                _refuse_subcommand(first, rest)
            return _parse_start(words, prefix="", look_up=look_up)


def parse_request(words: Sequence[str], *, look_up: LookUp = no_hub) -> StartRun:
    """Read RECIPE and key=value words that a shell has already split.

    Raises:
        UserError: as parse_command.
    """
    return _parse_start(list(words), prefix="plan ", look_up=look_up)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as exc:
        raise BadCommand(
            f"a quote is opened and not closed in: {shorten(text)}; close it or leave it out"
        ) from exc


def _without_arguments(word: str, rest: list[str], command: Command) -> Command:
    if rest:
        raise BadCommand(
            f'/train {word} takes nothing more, got "{shorten(" ".join(rest))}"',
            suggestion=f"/train {word}",
        )
    return command


def _optional_run(word: str, rest: list[str]) -> RunId | None:
    if len(rest) > 1:
        raise BadCommand(
            f'/train {word} takes one run id, got "{shorten(" ".join(rest))}"',
            suggestion=_accepted([word, rest[0]]),
        )
    return RunId(rest[0]) if rest else None


def _refuse_subcommand(first: str, rest: list[str]) -> None:
    """Raise if the first word is planned, stands for a subcommand, or resembles one.

    Nobody who mistypes a question is offered a start: only a recipe's own name starts a run.
    """
    meant = subcommand_meant(first)
    is_recipe = "=" in first or first.startswith(HUB_PREFIX) or recipe_meant(first, CATALOGUE)[1]
    if meant is None or is_recipe:
        return
    if meant in NOT_YET:
        name = (
            f"/train {meant}" if first.lower() == meant else f'"{shorten(first)}": /train {meant}'
        )
        raise NotAvailable(
            f"{name} is not available in this version; {NOT_YET[meant]}; "
            f"available: {', '.join(SUBCOMMANDS)}",
            suggestion=_accepted(*_instead(meant, rest)),
        )
    if meant == START:
        raise BadCommand(
            f'"{shorten(first)}" is not a command; start a run with /train RECIPE [key=value ...]',
            suggestion=_accepted(rest if rest and _is_first_word(rest[0]) else [], ["recipes"]),
        )
    raise BadCommand(
        f'"{shorten(first)}" is not a command; did you mean /train {meant}',
        suggestion=_accepted([meant, *rest], [meant]),
    )


def _instead(planned: str, rest: list[str]) -> list[list[str]]:
    """What this version has of the same meaning, with the words typed after a planned command."""
    subcommand = INSTEAD.get(planned)
    if subcommand is None or not rest:
        return []
    if subcommand == "plan" and not _is_recipe(rest[0]):
        return [["status", *rest]] if planned == "cost" else []
    return [[subcommand, *rest]]


def _is_first_word(word: str) -> bool:
    return word in SUBCOMMANDS or _is_recipe(word)


def _is_recipe(word: str) -> bool:
    return word in CATALOGUE or recipe_meant(word, CATALOGUE)[1]


def _accepted(*commands: list[str]) -> str | None:
    """The first of the commands that is accepted when it is pasted, corrected where it must be."""
    for words in filter(None, commands):
        text = shlex.join(words)
        try:
            parse_command(text)
        except UserError as error:
            if error.suggestion is not None:
                return error.suggestion
        else:
            return f"/train {text}"
    return None


def _parse_start(words: list[str], *, prefix: str, look_up: LookUp) -> StartRun:
    if not words:
        raise BadCommand(
            f"/train {prefix}needs a recipe: {', '.join(CATALOGUE)}, or {HUB_PREFIX}ORG/MODEL",
            suggestion=f"/train {prefix}{next(iter(CATALOGUE))} nodes=2",
        )
    name, pairs = words[0], words[1:]
    if "=" in name:
        first = [word for word in pairs if word in CATALOGUE][:1]
        in_order = [*prefix.split(), *first, *(word for word in words if word not in first)]
        raise BadCommand(
            f'the recipe comes first, got "{shorten(name)}"',
            suggestion=_accepted(in_order if first else [], ["recipes"]),
        )
    # What the hub says against a model has no nearest command that would work.
    model = look_up(repository_of(name)) if name.startswith(HUB_PREFIX) else None
    recipe: Recipe | None = None
    try:
        recipe = get_recipe(name, model)
        values = read_values(pairs, recipe)
    except UserError as error:
        if error.suggestion is None:
            error.suggestion = _suggest(recipe or name, pairs, prefix=prefix)
        raise
    return StartRun(
        name,
        nodes=values.nodes,
        instance_type=values.instance_type,
        overrides=values.overrides,
        model=model,
    )


def _suggest(recipe: Recipe | str, pairs: Sequence[str], *, prefix: str) -> str:
    """A command to paste: the one that was meant if that is beyond doubt, else one that is free."""
    if isinstance(recipe, Recipe):
        return corrected(recipe, pairs, prefix=prefix)
    meant, is_sure = recipe_meant(recipe, CATALOGUE)
    if meant is None:
        return "/train recipes"
    return corrected(CATALOGUE[meant], pairs, prefix=prefix if is_sure else "plan ")
