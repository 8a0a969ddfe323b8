"""Reads the text of a slash command: typed words in, a command or one helpful error out.

`/train RECIPE [nodes=N] [instance=TYPE] [key=value ...]` starts a run; everything else is a
subcommand. Chat clients turn quotes and dashes into typographic ones, so those are undone first.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from stationmaster.domain.catalogue import CATALOGUE, get_recipe
from stationmaster.domain.errors import (
    BadCommand,
    NotAvailable,
    NotPossibleNow,
    UserError,
    nearest,
)
from stationmaster.domain.hub import HUB_PREFIX, repository_of
from stationmaster.domain.models import LanguageModel
from stationmaster.domain.plan import plan_recipe
from stationmaster.domain.recipes import PRESET, SMOKE, Recipe

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
        values = _pairs(words.split())
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

    run_id: str | None = None


@dataclass(frozen=True)
class ShowLogs:
    """Show the last log lines of a run's pods."""

    run_id: str | None = None


@dataclass(frozen=True)
class StopRun:
    """Stop a run and tear it down."""

    run_id: str | None = None


Command = StartRun | ShowPlan | ShowHelp | ShowRecipes | ListRuns | ShowStatus | ShowLogs | StopRun

SUBCOMMANDS: Final = ("help", "recipes", "plan", "status", "logs", "stop", "list")
# Part of the grammar, so that they are never mistaken for recipes; each is refused with a sentence.
NOT_YET: Final = (
    "resume",
    "scale",
    "validate",
    "cluster",
    "keep",
    "teardown",
    "cost",
    "compare",
    "rerun",
    "diff",
)


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
        case word if word in NOT_YET:
            raise NotAvailable(
                f"/train {word} is not available in this version; "
                f"available: {', '.join(SUBCOMMANDS)}"
            )
        case _:
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
            f"a quote is opened and not closed in: {_shorten(text)}; close it or leave it out"
        ) from exc


def _without_arguments(word: str, rest: list[str], command: Command) -> Command:
    if rest:
        raise BadCommand(
            f'/train {word} takes nothing more, got "{_shorten(" ".join(rest))}"',
            suggestion=f"/train {word}",
        )
    return command


def _optional_run(word: str, rest: list[str]) -> str | None:
    if len(rest) > 1:
        raise BadCommand(
            f'/train {word} takes one run id, got "{_shorten(" ".join(rest))}"',
            suggestion=f"/train {word} {_shorten(rest[0])}",
        )
    return rest[0] if rest else None


def _parse_start(words: list[str], *, prefix: str, look_up: LookUp) -> StartRun:
    if not words:
        raise BadCommand(
            f"/train {prefix}needs a recipe: {', '.join(CATALOGUE)}, or {HUB_PREFIX}ORG/MODEL",
            suggestion=f"/train {prefix}{next(iter(CATALOGUE))} nodes=2",
        )
    name, pairs = words[0], words[1:]
    if "=" in name:
        raise BadCommand(
            f'the recipe comes first, got "{_shorten(name)}"',
            suggestion=_corrected(next(iter(CATALOGUE.values())), pairs, prefix=prefix),
        )
    # What the hub says against a model has no nearest command that would work.
    model = look_up(repository_of(name)) if name.startswith(HUB_PREFIX) else None
    recipe: Recipe | None = None
    try:
        recipe = get_recipe(name, model)
        values = _pairs(pairs)
        nodes = _nodes(values.pop("nodes", None), maximum=_most_nodes(recipe, values))
        instance_type = values.pop("instance", None)
        # Planning holds every other rule, so a bad value is refused here and not after a creation.
        plan_recipe(recipe.with_overrides(values), nodes=nodes, instance_type=instance_type)
    except UserError as error:
        if error.suggestion is None:
            nearest_recipe = recipe or CATALOGUE[nearest(name, CATALOGUE) or next(iter(CATALOGUE))]
            error.suggestion = _corrected(nearest_recipe, pairs, prefix=prefix)
        raise
    return StartRun(name, nodes=nodes, instance_type=instance_type, overrides=values, model=model)


def _pairs(words: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.lstrip("-").lower().replace("-", "_")
        if not equals or not key:
            raise BadCommand(f'expected key=value, got "{_shorten(word)}"')
        if not value:
            raise BadCommand(f"{_shorten(key)}= has no value; write {_shorten(key)}=VALUE")
        if key in values:
            raise BadCommand(f"{_shorten(key)} is given twice; keep one")
        values[key] = value
    return values


def _nodes(value: str | None, *, maximum: int) -> int | None:
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:9]) <= maximum:
        raise BadCommand(
            f"nodes={_shorten(value)} is not accepted: expected a whole number from 1 to {maximum}"
        )
    return int(value)


def _most_nodes(recipe: Recipe, values: Mapping[str, str]) -> int:
    """A preset has machines of its own; a preset that is not known is refused by the plan."""
    preset = {key: value for key, value in values.items() if key == PRESET}
    return recipe.with_overrides(preset).max_nodes


def _corrected(recipe: Recipe, pairs: Sequence[str], *, prefix: str) -> str:
    """A command that works and is as near as possible to what was typed.

    Each word is kept if the command stands with it, replaced by its nearest valid form if not, and
    left out as the last resort, so the suggestion never fails when pasted.
    """
    kept: list[str] = []
    # The preset first: it decides what else stands, and what a run costs.
    ordered = sorted(pairs[:20], key=lambda word: not word.startswith(f"{PRESET}="))
    for word in ordered:
        for candidate in _candidates(word, recipe):
            if _stands(recipe, [*kept, candidate]):
                kept.append(candidate)
                break
    return " ".join([f"/train {prefix}{recipe.name}", *kept])


def _candidates(word: str, recipe: Recipe) -> list[str]:
    key, _, value = word.partition("=")
    known = ("nodes", "instance", *recipe.keys)
    close = key if key in known else nearest(key, known)
    candidates = [word]
    if close is not None:
        candidates.append(f"{close}={value}")
        candidates.append(f"{close}={_default(close, recipe)}")
    return candidates


def _default(key: str, recipe: Recipe) -> object:
    if key == "nodes":
        return recipe.default_nodes
    if key == "instance":
        return recipe.default_instance
    if key == PRESET:
        return SMOKE
    return getattr(recipe.training, key)


def _stands(recipe: Recipe, words: Sequence[str]) -> bool:
    try:
        values = _pairs(words)
        most = _most_nodes(recipe, values)
        nodes = _nodes(values.pop("nodes", None), maximum=most)
        instance_type = values.pop("instance", None)
        plan_recipe(recipe.with_overrides(values), nodes=nodes, instance_type=instance_type)
    except UserError:
        return False
    return True


def _shorten(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
