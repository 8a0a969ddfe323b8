"""The key=value words after a recipe: read, checked, and corrected where they are wrong.

The grammar calls this for a start and for a plan; it knows nothing of subcommands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe
from stationmaster.domain.commands.meanings import (
    key_meant,
    planned_key_meant,
    refuse_mistyped_keys,
)
from stationmaster.domain.commands.table import PLANNED_KEYS, key_names
from stationmaster.domain.errors import BadCommand, NotAvailable, UserError
from stationmaster.domain.planning.plan import Plan, plan_recipe
from stationmaster.domain.spelling import nearest


@dataclass(frozen=True)
class Values:
    """What was typed, None where the recipe's default applies, and what it amounts to."""

    nodes: int | None
    instance_type: str | None
    overrides: dict[str, str]
    resolved: Recipe
    plan: Plan


def read_values(words: Sequence[str], recipe: Recipe) -> Values:
    """Read and check the words after a recipe.

    Raises:
        UserError: one sentence that names the value and what was expected.
    """
    values = read_pairs(words)
    _refuse_planned_keys(values, recipe)
    nodes = _nodes(values.pop("nodes", None), maximum=_most_nodes(recipe, values))
    instance_type = values.pop("instance", None)
    refuse_mistyped_keys(recipe, values)
    # Planning holds every other rule, so a bad value is refused here and not after a creation.
    resolved = recipe.with_overrides(values)
    plan = plan_recipe(resolved, nodes=nodes, instance_type=instance_type)
    return Values(nodes, instance_type, values, resolved, plan)


def read_pairs(words: Sequence[str]) -> dict[str, str]:
    """Read key=value words, whatever the keys.

    Raises:
        BadCommand: a word is no pair, or a key is there twice.
    """
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = _key(key)
        if not equals or not key:
            raise BadCommand(f'expected key=value, got "{shorten(word)}"')
        if not value:
            raise BadCommand(f"{shorten(key)}= has no value; write {shorten(key)}=VALUE")
        if key in values:
            raise BadCommand(f"{shorten(key)} is given twice; keep one")
        values[key] = value
    return values


def _key(typed: str) -> str:
    return typed.lstrip("-").lower().replace("-", "_")


def _nodes(value: str | None, *, maximum: int) -> int | None:
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:9]) <= maximum:
        raise BadCommand(
            f"nodes={shorten(value)} is not accepted: expected a whole number from 1 to {maximum}"
        )
    return int(value)


def _most_nodes(recipe: Recipe, values: Mapping[str, str]) -> int:
    """A preset has machines of its own; a preset that is not known is refused by the plan."""
    preset = {key: value for key, value in values.items() if key == PRESET}
    return recipe.with_overrides(preset).max_nodes


def _refuse_planned_keys(values: Mapping[str, str], recipe: Recipe) -> None:
    for key in values:
        if (planned := planned_key_meant(key, key_names(recipe))) is not None:
            name = f"{planned}=" if key == planned else f'"{shorten(key)}": {planned}='
            today = PLANNED_KEYS[planned].today
            raise NotAvailable(f"{name} is not available in this version; {today}")


def corrected(recipe: Recipe, pairs: Sequence[str], *, prefix: str) -> str:
    """A command that works and is as near as possible to what was typed.

    Each word is kept if the command stands with it, replaced by its nearest valid form if not, and
    left out as the last resort, so the suggestion never fails when pasted. Where a value had to be
    chosen or a word left out it is a plan, which costs nothing: without budget=5, or with other
    machines, a start could cost more than was typed.
    """
    spelled = [_candidates(word, recipe)[1:2] for word in pairs[:20]]
    together = [each for words in spelled for each in words]
    if len(together) == len(pairs) and _stands(recipe, together):
        return " ".join([f"/train {prefix}{recipe.name}", *together])
    kept: list[str] = []
    # The preset first: it decides what else stands, and what a run costs.
    ordered = sorted(pairs[:20], key=lambda word: not word.startswith(f"{PRESET}="))
    is_as_typed = len(pairs) == len(ordered)
    for word in ordered:
        *respelled, default = _candidates(word, recipe)
        found = next((each for each in respelled if _stands(recipe, [*kept, each])), None)
        is_as_typed = is_as_typed and found is not None
        if found is None and default and _stands(recipe, [*kept, default]):
            found = default
        kept += [found] if found else []
    return " ".join([f"/train {prefix if is_as_typed else 'plan '}{recipe.name}", *kept])


def _candidates(word: str, recipe: Recipe) -> list[str]:
    """The word, the same in another spelling, and last its key with the default; "" without one."""
    key, _, value = word.partition("=")
    close = key_meant(_key(key), key_names(recipe))
    if close is None:
        return [""]
    choice = nearest(value, [SMOKE]) if close == PRESET else None
    spellings = [word, f"{close}={value}", f"{close}={choice or value.lower()}"]
    return [*spellings, f"{close}={_default(close, recipe, value)}"]


def _default(key: str, recipe: Recipe, value: str) -> object:
    if key == "nodes":
        return recipe.default_nodes
    if key == "instance":
        near = None if value in INSTANCES else nearest(value, INSTANCES)
        return near or recipe.default_instance
    if key == PRESET:
        return SMOKE
    return getattr(recipe.training, key)


def _stands(recipe: Recipe, words: Sequence[str]) -> bool:
    try:
        read_values(words, recipe)
    except UserError:
        return False
    return True


def shorten(text: str, limit: int = 80) -> str:
    """Repeat no more of what was typed than a sentence bears."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
