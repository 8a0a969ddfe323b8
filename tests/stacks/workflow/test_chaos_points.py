"""What a sweep's sample has, and what makes a sweep fail."""

from __future__ import annotations

import pytest

from lambdas import registry
from stationmaster.domain.run.events import RunPhase
from stationmaster.rendering import train_job
from tests.chaos.__main__ import main
from tests.chaos.faults import faults, unclear
from tests.chaos.kills import kills
from tests.chaos.play import SWEEPS, Played, Shard, figures_of, last_line, points_with
from tests.chaos.points import (
    DEFAULT_SEED,
    GROUP_SEEDS,
    SEED_VARIABLE,
    Point,
    Verdict,
    alone,
    sample,
    some_of,
    sweep_seed,
)
from tests.chaos.states import CLUSTER_TASKS, TEARDOWN_TASKS


def point(name: str, group: str = "g", *, is_core: bool = False) -> Point:
    return Point("kills", group, name, "own", lambda scene, name: Verdict(), is_core)


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


def test_few_things_are_never_sampled_to_none():
    samples = [some_of("ab", seed) for seed in range(GROUP_SEEDS)]

    assert samples == [["a"], ["b"], ["a"], ["b"], ["a"]]
    assert some_of("", 3) == []


def test_points_have_names_of_their_own():
    names = [each.name for each in (*kills(), *faults())]

    assert len(names) == len(set(names))
    assert alone(kills()[0]) == f'python -m tests.chaos kills --only "{kills()[0].name}"'


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


@pytest.mark.parametrize(("text", "seed"), [("23", 23), ("all", None), ("", DEFAULT_SEED)])
def test_seed_is_set_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, seed: int | None
):
    monkeypatch.setenv(SEED_VARIABLE, text)

    assert sweep_seed() == seed


def test_seed_that_is_none_is_refused_with_what_it_may_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SEED_VARIABLE, "-3")

    with pytest.raises(ValueError, match='is "-3": expected all, or a whole number from 0 on'):
        sweep_seed()


@pytest.mark.parametrize("sweep", SWEEPS)
def test_parts_of_a_sweep_are_all_of_it_once(sweep: str):
    parts = [points_with(sweep, "", Shard(number, 4)) for number in range(1, 5)]

    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    names = [each.name for part in parts for each in part]
    assert sorted(names) == sorted(each.name for each in SWEEPS[sweep]())


def test_findings_are_counted_and_said_in_the_last_line():
    clean = Played(point("a"), Verdict(), 1.0, 2.0)
    bad = Played(point("b"), Verdict(orphans=["sg-1", "fs-1"], without_end=["run r"]), 1.0, 0.4)
    odd = Played(point("c"), Verdict(wrong=["it says nothing"]), 1.0, 1.0)

    assert last_line("kills", [clean]) == (
        "kills: 1 points, 0 orphans, 0 runs without an end, 2 s of CPU"
    )
    assert last_line("kills", [clean, bad, odd]) == (
        "kills: 3 points, 2 orphans, 1 runs without an end, 1 with a wrong end, 3 s of CPU"
    )
    verdicts = [each.verdict.value for each in figures_of("kills", [clean, bad])]
    assert verdicts == ["info", "over", "over", "pass", "info"]
    assert bad.as_json()["findings"] == [
        "left behind: sg-1",
        "left behind: fs-1",
        "no end: run r",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kills", "--only", "kilt"], 'no point of the sweep kills contains "kilt"'),
        (["relay", "--only", "own"], "invalid choice: 'relay'"),
        (["kills", "--shard", "0/2"], '"0/2" is no part: expected NUMBER/OF, as 1/4 to 4/4'),
        (["kills", "--shard", "two"], '"two" is no part: expected NUMBER/OF, as 1/4 to 4/4'),
        (["kills", "--only", "PrepareRun", "--shard", "99/99"], "99/99 of the sweep kills has no"),
    ],
)
def test_points_that_are_not_there_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    with pytest.raises(SystemExit) as ended:
        main(words)

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "is_clear"),
    [
        ("creating file system: AWS answers AccessDeniedException: no", True),
        ("", False),
        ("internal error: KeyError: 3", False),
        ("two\nlines", False),
    ],
)
def test_reason_of_a_failure_is_one_clear_sentence(reason: str, is_clear: bool):
    class Failed:
        phase = RunPhase.FAILED

    Failed.reason = reason

    assert (unclear(Failed) == []) is is_clear
