"""A sweep's points, what each of them comes to, and the sample that the tests play.

Pure: nothing here plays. `kills` and `faults` make the points, `scene` plays them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from tests.chaos.scene import Scene

T = TypeVar("T")
SEED_VARIABLE: Final = "STATIONMASTER_SWEEP_SEED"
# What the tests play on every day and machine; the variable chooses another sample, or all.
DEFAULT_SEED: Final = 17
_PLAYED: Final = (
    "tests/stacks/workflow/test_sweeps.py::test_run_that_is_disturbed_ends_well_and_leaves_nothing"
)
# So many seeds in a row meet each group once.
GROUP_SEEDS: Final = 5


@dataclass
class Verdict:
    """What is wrong when nothing moves any more; empty lists where all is well."""

    orphans: list[str] = field(default_factory=list)
    """What exists in the account and nobody deletes."""
    without_end: list[str] = field(default_factory=list)
    """Runs, clusters and teardowns that come to no end."""
    wrong: list[str] = field(default_factory=list)
    """Ends that are not the ones that people are promised."""

    @property
    def findings(self) -> list[str]:
        """All of it, as sentences."""
        return [
            *(f"left behind: {each}" for each in self.orphans),
            *(f"no end: {each}" for each in self.without_end),
            *self.wrong,
        ]

    def expect(self, holds: object, what: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.wrong.append(what)


@dataclass(frozen=True)
class Point:
    """One run that is disturbed in one place."""

    group: str
    """The state or the call that it is about; of a group a sample plays one point."""
    name: str
    place: str
    """What it is played on: `own`, `kept` or `existing`."""
    play: Callable[[Scene, str], Verdict] = field(repr=False, compare=False)
    is_core: bool = False
    """So dangerous that every sample has it."""


def sweep_seed() -> int | None:
    """Read the seed from the environment, else the default; None where all is to be played.

    Raises:
        ValueError: the variable is neither `all` nor a whole number from 0 on.
    """
    text = os.environ.get(SEED_VARIABLE, "")
    if not text:
        return DEFAULT_SEED
    if text == "all":
        return None
    if not text.isdecimal():
        raise ValueError(f'{SEED_VARIABLE} is "{text}": expected all, or a whole number from 0 on')
    return int(text)


def sample(points: Sequence[Point], seed: int | None) -> list[Point]:
    """The core, and one point of every fifth group, in the points' order.

    Five seeds in a row bring each group once; which of its points is by chance. All without a seed.
    """
    if seed is None:
        return list(points)
    groups: dict[str, list[Point]] = {}
    for point in points:
        if not point.is_core:
            groups.setdefault(point.group, []).append(point)
    chance = random.Random(seed)
    chosen = [chance.choice(groups[group]) for group in some_of(sorted(groups), seed)]
    return [point for point in points if point.is_core or point in chosen]


def some_of(things: Sequence[T], seed: int | None, *, one_in: int = GROUP_SEEDS) -> list[T]:
    """One in so many things, at least one; the next seed brings others. All without a seed."""
    if seed is None:
        return list(things)
    turn = seed % max(1, min(one_in, len(things)))
    return [each for number, each in enumerate(things) if number % one_in == turn]


def alone(point: Point) -> str:
    """The command that plays this point alone."""
    return f'{SEED_VARIABLE}=all .venv/bin/pytest "{_PLAYED}[{point.name}]"'
