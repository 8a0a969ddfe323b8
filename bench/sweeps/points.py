"""A sweep's points, what each of them comes to, and the sample that a day's tests play.

Pure: nothing here plays. `kills` and `faults` make the points, `play` plays them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from bench.sweeps.scene import Scene

T = TypeVar("T")
SEED_VARIABLE: Final = "STATIONMASTER_SWEEP_SEED"
# So many days in a row, each with its own number as seed, meet each group once.
DAYS: Final = 20
CORE_DAYS: Final = 2


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

    sweep: str
    group: str
    """The state or the call that it is about; of a group a sample plays one point."""
    name: str
    place: str
    """What it is played on: `own`, `kept` or `existing`."""
    play: Callable[[Scene, str], Verdict] = field(repr=False, compare=False)
    is_core: bool = False
    """So dangerous that it is played every other day."""


def seed_of_day() -> int | None:
    """The seed of the environment, else the day's number; None where all is to be played.

    Raises:
        ValueError: the variable is neither `all` nor a whole number from 0 on.
    """
    text = os.environ.get(SEED_VARIABLE, "")
    if not text:
        return datetime.now(UTC).date().toordinal()
    if text == "all":
        return None
    if not text.isdecimal():
        raise ValueError(f'{SEED_VARIABLE} is "{text}": expected all, or a whole number from 0 on')
    return int(text)


def sample(points: Sequence[Point], seed: int | None) -> list[Point]:
    """Half of the core, and one point of every twentieth group, in the points' order.

    Two days in a row bring the core. The seeds of twenty bring each group once; which of its points
    is by chance. All without a seed.
    """
    if seed is None:
        return list(points)
    groups: dict[str, list[Point]] = {}
    for point in points:
        if not point.is_core:
            groups.setdefault(point.group, []).append(point)
    chance = random.Random(seed)
    chosen = [chance.choice(groups[group]) for group in of_day(sorted(groups), seed)]
    chosen += of_day([point for point in points if point.is_core], seed, days=CORE_DAYS)
    return [point for point in points if point in chosen]


def of_day(things: Sequence[T], seed: int | None, *, days: int = DAYS) -> list[T]:
    """One of `days` things, another one each day; all without a seed."""
    if seed is None:
        return list(things)
    return [each for number, each in enumerate(things) if number % days == seed % days]


def alone(point: Point) -> str:
    """The command that plays this point alone."""
    return f'python -m bench {point.sweep} --only "{point.name}"'
