"""Plays a sweep's points one after the other, says how far it is, and counts what is wrong.

Called by `bench.__main__`. A world serves some points and is then made anew: what has happened in
it makes each transaction slower.
"""

from __future__ import annotations

import logging
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.figures import AtMost, Figure
from bench.sweeps.faults import faults
from bench.sweeps.kills import kills
from bench.sweeps.points import Point, Verdict
from bench.sweeps.scene import Place, open_scene, play_point

SWEEPS: Final[dict[str, Callable[[], list[Point]]]] = {"kills": kills, "faults": faults}
_POINTS_OF_A_WORLD: Final = 25
# For one wait of a point; on a machine that does nothing else none takes a tenth of it.
_DEADLINE_S: Final = 240.0


@dataclass(frozen=True)
class Played:
    """A point and what came of it."""

    point: Point
    verdict: Verdict
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """One object of the `--json` file."""
        return {
            "point": self.point.name,
            "seconds": round(self.seconds, 1),
            "findings": self.verdict.findings,
        }


def points_with(name: str, only: str) -> list[Point]:
    """The points of a sweep whose name contains a text."""
    return [point for point in SWEEPS[name]() if only in point.name]


def play_sweep(name: str, *, only: str = "") -> list[Played]:
    """Play all points of a sweep whose name contains `only`, with a line for each."""
    points = points_with(name, only)
    # What refuses and dies in a sweep is logged by the functions a thousand times.
    logging.disable(logging.CRITICAL)
    played: list[Played] = []
    for part in _parts(points):
        with (
            tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as directory,
            open_scene(Path(directory)) as scene,
        ):
            scene.world.deadline_s = _DEADLINE_S
            for point in part:
                began = time.monotonic()
                try:
                    verdict = play_point(scene, point)
                except Exception:
                    # A point that breaks must not hide what the others find.
                    verdict = Verdict(wrong=[traceback.format_exc()])
                played.append(Played(point, verdict, time.monotonic() - began))
                _say(played[-1], f"{len(played)}/{len(points)}")
    return played


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
    ]


def last_line(name: str, played: Sequence[Played]) -> str:
    """The sweep in one line."""
    points, orphans, endless, wrong = (round(each.value) for each in figures_of(name, played))
    line = f"{name}: {points} points, {orphans} orphans, {endless} runs without an end"
    return line if not wrong else f"{line}, {wrong} with a wrong end"


def _parts(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Points that share a world: guests count the nodes of a cluster, and share one with nobody."""
    apart = [point for point in points if point.place == Place.EXISTING]
    together = [point for point in points if point.place != Place.EXISTING]
    for group in (together, apart):
        for start in range(0, len(group), _POINTS_OF_A_WORLD):
            yield group[start : start + _POINTS_OF_A_WORLD]


def _say(played: Played, place: str) -> None:
    for each in played.verdict.findings:
        print(f"  {played.point.name}: {each}", flush=True)
    mark = "bad" if played.verdict.findings else "ok"
    print(f"  {place} {mark} {played.seconds:.1f} s  {played.point.name}", flush=True)
