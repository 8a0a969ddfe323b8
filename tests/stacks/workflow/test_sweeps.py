"""A sample of both sweeps by the seed of the day; `python -m bench kills faults` plays all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.sweeps.faults import faults
from bench.sweeps.kills import kills
from bench.sweeps.points import Point, Verdict, alone, sample, seed_of_day
from bench.sweeps.scene import Place, Scene, open_scene, play_point

SEED = seed_of_day()
# Those of one scene after those of the other: each is made once.
POINTS = sorted(
    [*sample(kills(), SEED), *sample(faults(), SEED)],
    key=lambda point: point.place == Place.EXISTING,
)


@pytest.fixture(scope="module")
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """One for guests, which count the nodes of their cluster, and one for all others."""
    with open_scene(tmp_path_factory.mktemp("sweep")) as made:
        yield made


@pytest.mark.parametrize(
    ("scene", "point"),
    [(point.place == Place.EXISTING, point) for point in POINTS],
    indirect=["scene"],
    ids=[point.name for point in POINTS],
)
def test_run_that_is_disturbed_ends_well_and_leaves_nothing(scene: Scene, point: Point) -> None:
    verdict = play_point(scene, point)

    assert verdict.findings == [], f"seed {SEED}; to repeat it: {alone(point)}"


@pytest.mark.parametrize("scene", [False], indirect=True)
def test_thing_that_a_point_leaves_in_the_account_is_found(scene: Scene) -> None:
    def leave(scene: Scene, name: str) -> Verdict:
        assert scene.world.mode.settings is not None
        scene.world.aws.client("ec2").create_security_group(
            GroupName=name, Description=name, VpcId=scene.world.mode.settings.vpc_id
        )
        return Verdict()

    verdict = play_point(scene, Point("kills", "none", "leaves a group", Place.OWN, leave))

    (orphan,) = verdict.orphans
    assert orphan.startswith("security groups sg-")
