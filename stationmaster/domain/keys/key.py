"""What a key is, what the modules of keys have in common, and what they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.keys.questions import Questions
from stationmaster.domain.planning.plan import Plan


class Part(Frozen):
    """What is kept of the keys of one module; each field has a default."""


SomePart = TypeVar("SomePart", bound=Part)


def _nothing(value: str) -> None:
    """Know no other spelling."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key=value that this version has."""

    name: str
    help: str
    meanings: tuple[str, ...] = ()
    """Words of the same meaning, which other tools use."""
    choices: tuple[str, ...] = ()
    """Values worth offering; none where a number or a name is expected."""
    meant: Callable[[str], str | None] = _nothing
    """The value that is meant by one that is not accepted, where it is only spelled otherwise."""
    usual: Callable[[str, Recipe, Cluster | None], object] | None = None
    """A value in place of one that is not accepted; None where no other is beyond doubt."""
    turn: int = 3
    """Words of a lower turn are read first: they decide whether the others stand."""
    is_resumed: bool = False
    """Whether `/train resume` takes it from the run that it resumes."""
    typed: Callable[[Any], str | None] = _nothing
    """Writes it as it can be typed, from a run's options; None or "" where it was not."""

    def respelled(self, value: str) -> str:
        """Spell the value as it is accepted, as far as that is known."""
        return self.meant(value) or value.lower()


@dataclass(frozen=True, kw_only=True)
class Typed:
    """The words after a recipe, or after the name of a new cluster."""

    words: Mapping[str, str]
    """All of them, by their keys."""
    overrides: dict[str, str] = field(default_factory=dict)
    """Those that are keys of the recipe, or of nothing."""
    max_nodes: int
    ask: Questions

    def get(self, key: Key) -> str | None:
        """Return what was typed after a key; None for nothing."""
        return self.words.get(key.name)

    def whole(self, key: Key, least: int, most: int) -> int | None:
        """Return the whole number that was typed after a key; None for nothing.

        Raises:
            BadCommand: it is none, or below `least` or above `most`.
        """
        value = self.get(key)
        if value is None:
            return None
        is_number = value.isascii() and value.isdigit() and len(value) <= 9
        if not is_number or not least <= int(value) <= most:
            raise BadCommand(
                f"{key.name}={value[:80]} is not accepted: expected a whole number from {least} to "
                f"{most}"
            )
        return int(value)


@dataclass(frozen=True, kw_only=True)
class Start(Typed):
    """A start once every key is read."""

    options: Part
    """What all of them amount to: each module finds its part."""
    recipe: Recipe
    """As it was named."""
    fit: Callable[[Recipe], Recipe]
    """Puts what the options say of the file system into a recipe."""

    def part(self, kind: type[SomePart]) -> SomePart:
        """Return what the keys of one module amount to."""
        assert isinstance(self.options, kind)
        return self.options

    @cached_property
    def resolved(self) -> Recipe:
        """The recipe that would be trained.

        Raises:
            BadParameter: the recipe has no such key, or does not take a value.
        """
        return self.fit(self.recipe.with_overrides(self.overrides))


def _no_rule(start: Start) -> None:
    """Refuse nothing."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The keys of one module, and what it does with them; all of it may raise a UserError."""

    keys: tuple[Key, ...]
    """In the order of help texts."""
    read: Callable[[Typed], Part]
    """Reads the module's Option, and asks about what a word names outside."""
    refuse: Callable[[Start], None] = _no_rule
    """Holds the rules between its keys and others; those of the longer reach have them."""
    note: Callable[[Start, Plan], Iterable[str]] = lambda _start, _plan: ()
    """Says in the plan what it means."""
