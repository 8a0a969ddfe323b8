"""How many pods a Deployment has, and how many of them work, at each moment of a rollout."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.local.cluster.controllers.rollouts import Step, limits, next_step


def deployment(replicas: int, **rolling: Any) -> dict[str, Any]:
    """One that rolls by these limits; without any, one of the strategy Recreate."""
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    return {"spec": {"replicas": replicas, "strategy": strategy if rolling else RECREATE}}


RECREATE = {"type": "Recreate"}


def replica_set(name: str, size: int, available: int) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"replicas": size},
        "status": {"availableReplicas": available},
    }


def moments(roll: dict[str, Any], *sizes: int) -> list[tuple[int, ...]]:
    """The sizes of the old sets and the new one after each change, all pods becoming ready."""
    old = [replica_set(f"old-{index}", size, size) for index, size in enumerate(sizes)]
    new: dict[str, Any] | None = None
    seen = [(*sizes, 0)]
    for _ in range(50):
        step = next_step(roll, new, old, old_pods_left=False)
        if step == Step():
            return seen
        if step.new is not None:
            new = replica_set("new", step.new, step.new)
        old = [
            replica_set(each["metadata"]["name"], size, size)
            for each in old
            for size in [step.old.get(each["metadata"]["name"], each["spec"]["replicas"])]
        ]
        sizes_now = tuple(each["spec"]["replicas"] for each in [*old, *filter(None, [new])])
        seen.append(sizes_now if new else (*sizes_now, 0))
    raise AssertionError(f"it does not end: {seen}")


@pytest.mark.parametrize(
    ("roll", "sizes", "expected"),
    [
        # Two pods that need a node each, on two nodes: one goes before one comes.
        (
            deployment(2, maxSurge=0, maxUnavailable=1),
            (2,),
            [(2, 0), (2, 0), (1, 0), (1, 1), (0, 1), (0, 2)],
        ),
        (deployment(1, maxSurge="25%", maxUnavailable="25%"), (1,), [(1, 0), (1, 1), (0, 1)]),
        (
            deployment(2, maxSurge=1, maxUnavailable=0),
            (2,),
            [(2, 0), (2, 1), (1, 1), (1, 2), (0, 2)],
        ),
        (deployment(3), (3,), [(3, 0), (0, 0), (0, 3)]),
        (deployment(2), (1, 1), [(1, 1, 0), (0, 0, 0), (0, 0, 2)]),
        (deployment(2, maxSurge=1, maxUnavailable=0), (), [(0,), (2,)]),
    ],
)
def test_rollout_goes_through_these_sizes(
    roll: dict[str, Any], sizes: tuple[int, ...], expected: list[tuple[int, ...]]
) -> None:
    assert moments(roll, *sizes) == expected


@pytest.mark.parametrize("wanted", [1, 2, 5, 10])
@pytest.mark.parametrize("surge", [0, 1, "30%", "100%"])
@pytest.mark.parametrize("unavailable", [0, 2, "30%", "100%"])
def test_rolling_update_keeps_to_its_limits(wanted: int, surge: Any, unavailable: Any) -> None:
    roll = deployment(wanted, maxSurge=surge, maxUnavailable=unavailable)
    too_many, too_few = limits(roll)

    seen = moments(roll, wanted)

    assert seen[-1] == (0, wanted)
    assert max(map(sum, seen)) <= wanted + too_many
    assert min(map(sum, seen)) >= wanted - too_few


def test_old_pods_stay_while_the_new_ones_do_not_become_available() -> None:
    roll = deployment(2, maxSurge=1, maxUnavailable=0)

    step = next_step(roll, replica_set("new", 1, 0), [replica_set("old", 2, 2)], old_pods_left=True)

    assert step == Step()
