"""A sample of both sweeps by the seed, or with STATIONMASTER_SWEEP_SEED=all every point."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.faults import faults
from tests.chaos.kills import kills
from tests.chaos.points import Point, alone, sample, sweep_seed
from tests.chaos.scene import GUESTS, Scene, open_scene, play_point

SEED = sweep_seed()
# A world is then made anew: what has happened in it makes each transaction slower.
POINTS_OF_A_WORLD = 25
# Those of one scene after those of the other: each is made once. Faults come before kills, whose
# kept cluster would leave Kubernetes other than a new one has it.
POINTS = sorted(
    [*sample(faults(), SEED), *sample(kills(), SEED)],
    key=lambda point: (point.place in GUESTS, point.place if point.place in GUESTS else ""),
)


@pytest.fixture(scope="module")
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """One for guests, which count the nodes of their cluster, others for all the rest."""
    with open_scene(tmp_path_factory.mktemp("sweep")) as made:
        yield made


@pytest.mark.parametrize(
    ("scene", "point"),
    [
        ((point.place in GUESTS, number // POINTS_OF_A_WORLD), point)
        for number, point in enumerate(POINTS)
    ],
    indirect=["scene"],
    ids=[point.name for point in POINTS],
)
def test_run_that_is_disturbed_ends_well_and_leaves_nothing(scene: Scene, point: Point) -> None:
    verdict = play_point(scene, point)

    assert verdict.findings == [], f"seed {SEED}; to repeat it: {alone(point)}"
