"""What a sweep's sample has, and what makes a sweep fail."""

from __future__ import annotations

import pytest

from lambdas import registry
from stationmaster.rendering import train_job
from tests.chaos.faults import faults
from tests.chaos.kills import kills
from tests.chaos.points import (
    GROUP_SEEDS,
    alone,
    sample,
)
from tests.chaos.states import CLUSTER_TASKS, TEARDOWN_TASKS

SWEEPS = {"kills": kills, "faults": faults}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_five_seeds_bring_each_group_and_each_the_core(sweep: str):
    points = SWEEPS[sweep]()
    samples = [sample(points, seed) for seed in range(700_000, 700_000 + GROUP_SEEDS)]

    assert {each.group for some in samples for each in some} == {each.group for each in points}
    core = {each.name for each in points if each.is_core}
    assert core
    assert all(core <= {each.name for each in some} for some in samples)
    assert max(map(len, samples)) < len(points) / 8
    assert sample(points, 3) == sample(points, 3)
    assert sample(points, None) == points


def test_points_have_names_of_their_own():
    names = [each.name for each in (*kills(), *faults())]

    assert len(names) == len(set(names))
    assert alone(kills()[0]).endswith(f'leaves_nothing[{kills()[0].name}]"')


def test_each_function_of_the_workflows_is_killed():
    killed = {each.group for each in kills()}
    functions = {step.name for step in (*registry.TRAIN_STEPS, *registry.CLUSTER_STEPS)}
    functions |= {step.name for step in registry.TEARDOWN_STEPS}
    tasks = {**CLUSTER_TASKS, **TEARDOWN_TASKS}
    met = {tasks[state].function for kind, state in map(str.split, killed_states(killed))}
    met |= {moment_function(state) for state in states_of(killed, "train")}

    assert functions - met == set()


def test_states_that_meet_a_trainjob_are_killed_and_each_part_of_it_is_held_in_flight():
    groups = {each.group for each in kills() if each.place == "trainjob"}

    parts = {plural for _, plural in train_job.TYPES}
    assert {f"creation kubernetes.PATCH {part} of submit-job" for part in parts} <= groups
    assert {"SubmitJob", "AwaitJob", "SaveResults"} <= states_of(groups, "train")
    assert {"ReleaseJob", "ReleaseCluster"} <= states_of(groups, "teardown")
    assert "PushResults" not in states_of(groups, "train"), "it does not know the job"


def killed_states(groups: set[str]) -> list[str]:
    return [each for each in groups if each.split()[0] in ("cluster", "teardown")]


def states_of(groups: set[str], machine: str) -> set[str]:
    return {each.split()[1] for each in groups if each.split()[0] == machine}


def moment_function(state: str) -> str:
    from tests.chaos.moments import MOMENTS

    return next(each.function for each in MOMENTS if each.state == state)
