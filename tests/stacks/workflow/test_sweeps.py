"""A sample of both sweeps by the seed, or with STATIONMASTER_SWEEP_SEED=all every point."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.faults import faults
from tests.chaos.kills import kills
from tests.chaos.moments import Moment, reach
from tests.chaos.points import Point, Verdict, alone, sample, sweep_seed
from tests.chaos.rules import Hold
from tests.chaos.scene import GUESTS, WAIT_S, Place, Scene, open_scene, play_point
from tests.chaos.watched import AnId

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


@pytest.mark.parametrize("scene", [(False, 0)], indirect=True)
def test_thing_that_a_point_leaves_in_the_account_is_found(scene: Scene) -> None:
    def leave(scene: Scene, name: str) -> Verdict:
        assert scene.world.mode.settings is not None
        scene.world.aws.client("ec2").create_security_group(
            GroupName=name, Description=name, VpcId=scene.world.mode.settings.vpc_id
        )
        return Verdict()

    verdict = play_point(scene, Point("none", "leaves a group", Place.OWN, leave))

    (orphan,) = verdict.orphans
    assert orphan.startswith("security groups sg-")


@pytest.mark.parametrize("scene", [(False, 0)], indirect=True)
def test_point_that_hangs_says_in_which_state_and_holds_up_no_other(scene: Scene) -> None:
    world, owners = scene.world, list[AnId]()

    def hang(scene: Scene, name: str) -> Verdict:
        moment = Moment("PrepareRun", "prepare-run")
        run_id, held = reach(world, name, moment)
        owners.append(run_id)
        world.deadline_s = 0.1
        try:
            return Verdict(wrong=[str(world.until(lambda: False, "the sun rises in the west"))])
        finally:
            world.deadline_s = WAIT_S
            world.kill(run_id)
            held.released.set()
            world.until_still(run_id)

    verdict = play_point(scene, Point("none", "hangs", Place.OWN, hang))

    assert verdict.without_end == [
        f"not within 0.1 s: the sun rises in the west; train {owners[0]} is in PrepareRun"
    ]
    assert (verdict.orphans, verdict.wrong) == ([], [])


@pytest.mark.parametrize("scene", [(False, 0)], indirect=True)
def test_wait_that_nothing_can_end_is_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scene.world, "still_s", 0.1)

    with pytest.raises(
        TimeoutError, match=r"never: the sun rises; no execution has run for 0\.1 s"
    ):
        scene.world.until(lambda: False, "the sun rises")


@pytest.mark.parametrize("scene", [(False, 0)], indirect=True)
def test_what_a_point_disturbs_is_undisturbed_for_the_next(scene: Scene) -> None:
    held: list[Hold] = []

    def hold(scene: Scene, name: str) -> Verdict:
        held.append(scene.world.runtime.hold(name, "prepare-run"))
        return Verdict()

    play_point(scene, Point("none", "holds", Place.OWN, hold))

    assert held[0].released.is_set()
