"""Plays a sweep's points one after the other, says how far it is, and counts what is wrong.

Called by `tests.chaos.__main__`. A world serves some points and is then made anew: what has
happened in it makes each transaction slower.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.figures import AtMost, Figure
from tests.chaos.faults import faults
from tests.chaos.kills import kills
from tests.chaos.points import Point, Verdict
from tests.chaos.scene import GUESTS, open_scene, play_point

SWEEPS: Final[dict[str, Callable[[], list[Point]]]] = {"kills": kills, "faults": faults}
_POINTS_OF_A_WORLD: Final = 25


@dataclass(frozen=True)
class Played:
    """A point and what came of it."""

    point: Point
    verdict: Verdict
    seconds: float
    cpu_s: float
    """Of this process and of those that it has started and seen end."""

    def as_json(self) -> dict[str, Any]:
        """One object of the `--json` file."""
        return {
            "point": self.point.name,
            "seconds": round(self.seconds, 1),
            "cpu_s": round(self.cpu_s, 1),
            "findings": self.verdict.findings,
        }


@dataclass(frozen=True)
class Shard:
    """Every second point, or every tenth: several machines or hours share a sweep."""

    number: int
    """From 1."""
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """What `--shard` says.

        Raises:
            ValueError: it is not `NUMBER/OF` with 1 <= NUMBER <= OF.
        """
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ValueError(f'"{text}" is no part: expected NUMBER/OF, as 1/4 to 4/4')
        return cls(int(number), int(of))


WHOLE: Final = Shard(1, 1)


def points_with(name: str, only: str, shard: Shard = WHOLE) -> list[Point]:
    """The points of a sweep whose name contains a text; of these, those of the part."""
    found = [point for point in SWEEPS[name]() if only in point.name]
    return found[shard.number - 1 :: shard.of]


def play_sweep(name: str, *, only: str = "", shard: Shard = WHOLE) -> list[Played]:
    """Play all points of a sweep whose name contains `only`, with a line for each."""
    points = points_with(name, only, shard)
    # What refuses and dies in a sweep is logged by the functions a thousand times.
    logging.disable(logging.CRITICAL)
    played: list[Played] = []
    for part in _parts(points):
        with (
            tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as directory,
            open_scene(Path(directory)) as scene,
        ):
            for point in part:
                began, cpu_began_s = time.monotonic(), _cpu_s()
                try:
                    verdict = play_point(scene, point)
                except Exception:
                    # A point that breaks must not hide what the others find.
                    verdict = Verdict(wrong=[traceback.format_exc()])
                took_s, cpu_s = time.monotonic() - began, _cpu_s() - cpu_began_s
                played.append(Played(point, verdict, took_s, cpu_s))
                _say(played[-1], f"{len(played)}/{len(points)}")
    return played


def _cpu_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def figures_of(name: str, played: Sequence[Played]) -> list[Figure]:
    """How many points, and what must be none of."""
    orphans = sum(len(each.verdict.orphans) for each in played)
    endless = sum(bool(each.verdict.without_end) for each in played)
    wrong = sum(bool(each.verdict.wrong) for each in played)
    return [
        Figure(name=f"{name}: points", value=len(played), unit=""),
        Figure(name=f"{name}: orphans", value=orphans, unit="", target=AtMost(0)),
        Figure(name=f"{name}: runs without an end", value=endless, unit="", target=AtMost(0)),
        Figure(name=f"{name}: points with a wrong end", value=wrong, unit="", target=AtMost(0)),
        Figure(name=f"{name}: CPU", value=sum(each.cpu_s for each in played), unit="s"),
    ]


def last_line(name: str, played: Sequence[Played]) -> str:
    """The sweep in one line."""
    values = (round(each.value) for each in figures_of(name, played))
    points, orphans, endless, wrong, cpu_s = values
    line = f"{name}: {points} points, {orphans} orphans, {endless} runs without an end"
    if wrong:
        line += f", {wrong} with a wrong end"
    return f"{line}, {cpu_s} s of CPU"


def _parts(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Points that share a world: guests count the nodes of a cluster, and share one with nobody."""
    apart = [point for point in points if point.place in GUESTS]
    apart.sort(key=lambda point: point.place)  # so that operators change once
    together = [point for point in points if point.place not in GUESTS]
    for group in (together, apart):
        for start in range(0, len(group), _POINTS_OF_A_WORLD):
            yield group[start : start + _POINTS_OF_A_WORLD]


def _say(played: Played, place: str) -> None:
    for each in played.verdict.findings:
        print(f"  {played.point.name}: {each}", flush=True)
    mark = "bad" if played.verdict.findings else "ok"
    took = f"{played.seconds:.1f} s ({played.cpu_s:.1f} of CPU)"
    print(f"  {place} {mark} {took}  {played.point.name}", flush=True)
