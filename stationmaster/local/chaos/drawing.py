"""Draws what happens to a local mode, all of it from one `random.Random(seed)`. Pure.

What a fault meets is chosen when it comes, by the number that was drawn with it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

# Every loss of every run with these words must be that of the undisturbed run.
TRAINING: Final = "tiny-llama nodes=1 steps=40"
CLUSTER: Final = "chaos"
# How often each fault comes, against the others; `hands` has a method for each.
WEIGHTS: Final = {
    "stop": 1,
    "resume": 2,
    "pod": 3,
    "worker": 3,
    "agent": 2,
    "relay": 3,
    "pause": 2,
    "node": 2,
    "notifier": 3,
    "throttle": 4,
    "timeout": 4,
    "twice": 4,
    "disorder": 4,
    "aws": 4,
    "slack": 2,
    "clock": 2,
    "disk": 1,
}
_FIRST_FAULT_S: Final = 8.0
_MEAN_GAP_S: Final = 5.0
_RUNS_A_MINUTE: Final = 2.0
# Runs that start later would hardly meet a fault.
_LAST_START: Final = 0.75
_EXTRA_WORDS: Final = ("", "", "", f" on={CLUSTER}", f" on={CLUSTER}", " budget=0.01")


@dataclass(frozen=True)
class Incident:
    """A fault, or a run that is started with these words; `pick` and `amount` are below 1."""

    at_s: float
    kind: str
    pick: float
    amount: float
    words: str = ""

    def choose(self, among: Sequence[T]) -> T | None:
        """Choose what it happens to; None where there is nothing."""
        return among[int(self.pick * len(among))] if among else None

    def between(self, least: float, most: float) -> float:
        """Return its amount in a range."""
        return least + self.amount * (most - least)


def draw(seed: int, *, minutes: float) -> list[Incident]:
    """Draw everything that happens in so many minutes, in order; two runs start at once."""
    chance, length_s = random.Random(seed), minutes * 60
    starts = [0.0, 0.0]
    while len(starts) < _RUNS_A_MINUTE * minutes:
        starts.append(chance.uniform(0, length_s * _LAST_START))
    drawn = []
    for number, at_s in enumerate(starts):
        # Other words each time, or it would be the same command; they change no loss.
        words = f"{TRAINING} checkpoint_every={4 + number}{chance.choice(_EXTRA_WORDS)}"
        drawn.append(Incident(at_s, "start", chance.random(), chance.random(), words))
    at_s = _FIRST_FAULT_S
    while at_s < length_s:
        (kind,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        drawn.append(Incident(at_s, kind, chance.random(), chance.random()))
        at_s += chance.expovariate(1 / _MEAN_GAP_S)
    return sorted(drawn, key=lambda each: each.at_s)
