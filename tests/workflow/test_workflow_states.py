"""How a run ends on every way through the workflows; the ways are in workflow_scenarios."""

from __future__ import annotations

from collections import Counter

import pytest
from workflow_graph import visited
from workflow_scenarios import BROKEN, STOPPED_AT, TEARDOWN_TASKS, TRAIN_TASKS, Played
from workflow_world import Outcome

from stationmaster.domain.events import RunPhase
from stationmaster.domain.run import TeardownStatus

# States inside a Parallel or a Map have no Catch of their own.
CAUGHT_AT = {
    "EnsureSystemNodes": "ProvisionCapacity",
    "EnsureTrainingNodes": "ProvisionCapacity",
    "EnsureFileSystem": "ProvisionCapacity",
    "InstallPlugin": "InstallPlugins",
    "RunCheck": "Validate",
}
# These tell that the teardown failed; after any other one what is tagged is still deleted.
DECISIVE = ("BeginTeardown", "VerifyReleased", "ConcludeTeardown")


def assert_gone(outcome: Outcome) -> None:
    assert outcome.run.teardown is TeardownStatus.COMPLETED
    assert outcome.left == []
    assert outcome.run.billable_left == []


def edges_of(outcome: Outcome) -> set[tuple[str, str]]:
    return visited([outcome.train.history]).edges


def test_undisturbed_run_trains_succeeds_and_leaves_nothing(played: Played) -> None:
    outcome = played.of("plain")

    assert outcome.run.phase_names == [
        "requested",
        "provisioning",
        "validating",
        "submitting",
        "running",
        "succeeded",
    ]
    assert outcome.run.progress is not None
    assert (outcome.run.progress.step, outcome.run.progress.loss_nats) == (2, 8.25)
    assert outcome.train.status == "SUCCEEDED"
    assert_gone(outcome)


@pytest.mark.parametrize("name", ["every call fails once", "every answer is lost once"])
def test_run_whose_every_step_meets_a_passing_error_succeeds(played: Played, name: str) -> None:
    outcome = played.of(name)

    assert outcome.run.phase is RunPhase.SUCCEEDED
    assert visited([outcome.train.history]).retries >= {*TRAIN_TASKS, "ConcludeRun", "ReleaseRun"}
    assert visited([each.history for each in outcome.teardowns]).retries == set(TEARDOWN_TASKS)
    assert_gone(outcome)


def test_run_whose_every_call_is_doubled_creates_everything_and_tells_everything_once(
    played: Played,
) -> None:
    outcome = played.of("every call is doubled")

    assert outcome.run.phase is RunPhase.SUCCEEDED
    assert len(outcome.teardowns) == 1
    created = Counter(
        (event.kind, event.name) for event in outcome.events if event.type == "resource.created"
    )
    phases = Counter(event.phase for event in outcome.events if event.type == "run.phase_changed")
    assert {kind.value for kind, _ in created} >= {"cluster", "node group", "file system"}
    assert set(created.values()) == {1}
    assert set(phases.values()) == {1}
    steps = [event.step for event in outcome.events if event.type == "progress.reported"]
    assert steps == [1, 2]
    assert_gone(outcome)


@pytest.mark.parametrize("state", TRAIN_TASKS)
def test_step_that_fails_for_good_fails_the_run_with_its_sentence_and_releases_it(
    played: Played, state: str
) -> None:
    outcome = played.of(f"train: {state} fails")

    assert (outcome.run.phase, outcome.run.reason) == (RunPhase.FAILED, BROKEN)
    assert (CAUGHT_AT.get(state, state), "ConcludeFailure") in edges_of(outcome)
    assert outcome.train.status == "FAILED"
    assert_gone(outcome)


def test_run_that_cannot_be_concluded_as_success_fails_and_is_released(played: Played) -> None:
    outcome = played.of("train: ConcludeRun fails")

    assert (outcome.run.phase, outcome.run.reason) == (RunPhase.FAILED, BROKEN)
    assert ("ConcludeRun", "ConcludeFailure") in edges_of(outcome)
    assert_gone(outcome)


def test_run_that_succeeded_and_is_released_only_at_the_second_try_stays_succeeded(
    played: Played,
) -> None:
    outcome = played.of("train: ReleaseRun fails")

    assert outcome.run.phase is RunPhase.SUCCEEDED
    assert ("RunOutcome", "RunReleasedLate") in edges_of(outcome)
    assert_gone(outcome)


@pytest.mark.parametrize("function", STOPPED_AT)
def test_run_stopped_while_a_step_is_called_ends_stopped_and_is_released(
    played: Played, function: str
) -> None:
    outcome = played.of(f"stopped at {function}")

    assert outcome.run.phase is RunPhase.STOPPED
    assert ("RunOutcome", "RunStopped") in edges_of(outcome)
    assert_gone(outcome)


def test_run_stopped_while_it_trains_is_woken_and_released(played: Played) -> None:
    outcome = played.of("stopped while awaiting")

    assert outcome.run.phase is RunPhase.STOPPED
    assert ("AwaitJob", "ConcludeFailure") in edges_of(outcome)
    assert_gone(outcome)


@pytest.mark.parametrize("name", ["killed while provisioning", "killed while awaiting"])
def test_execution_that_is_stopped_from_outside_fails_its_run_and_releases_it(
    played: Played, name: str
) -> None:
    outcome = played.of(name)

    assert outcome.train.status == "ABORTED"
    assert outcome.run.phase is RunPhase.FAILED
    assert outcome.run.reason.startswith("the workflow was stopped from outside")
    assert_gone(outcome)


def test_job_whose_node_is_not_there_yet_is_waited_for(played: Played) -> None:
    outcome = played.of("job starts late")

    assert ("JobStarted?", "WaitForJobStart") in edges_of(outcome)
    assert outcome.run.phase is RunPhase.SUCCEEDED
    assert_gone(outcome)


def test_training_that_fails_ends_the_run_with_the_trainers_sentence(played: Played) -> None:
    outcome = played.of("training fails")

    assert (outcome.run.phase, outcome.run.reason) == (RunPhase.FAILED, "the loss is not a number")
    assert ("AwaitJob", "ConcludeFailure") in edges_of(outcome)
    assert_gone(outcome)


def test_relay_that_falls_silent_ends_the_run_and_says_so(played: Played) -> None:
    outcome = played.of("heartbeat stops")

    assert outcome.run.phase is RunPhase.FAILED
    assert "the relay in the cluster fell silent" in outcome.run.reason
    assert_gone(outcome)


@pytest.mark.parametrize("state", [state for state in TEARDOWN_TASKS if state not in DECISIVE])
def test_deletion_that_fails_for_good_does_not_keep_the_rest_from_being_deleted(
    played: Played, state: str
) -> None:
    outcome = played.of(f"teardown: {state} fails")

    seen = visited([outcome.teardowns[0].history])
    assert {"ReleaseCluster", "ReleaseNetwork", "VerifyReleased"} <= seen.states
    assert_gone(outcome)


@pytest.mark.parametrize("state", DECISIVE)
def test_teardown_that_fails_is_told_and_finished_by_the_reaper(played: Played, state: str) -> None:
    told = played.of(f"teardown: {state} fails")
    finished = played.finally_of(f"teardown: {state} fails")

    failure = told.events_of("teardown.failed")[0]
    assert failure.reason == BROKEN
    assert failure.left == told.left
    assert told.run.teardown is TeardownStatus.FAILED
    assert finished.run.run_id in played.reaped
    # The end of the run is told by its release and by its dead execution: there may be two.
    assert {each.status for each in finished.teardowns[:-1]} == {"FAILED"}
    assert finished.teardowns[-1].status == "SUCCEEDED"
    assert_gone(finished)


def test_last_resorts_that_fail_at_first_are_tried_until_they_work(played: Played) -> None:
    told = played.of("last resorts fail at first")

    assert (told.run.phase, told.run.reason) == (RunPhase.FAILED, BROKEN)
    assert {"ConcludeFailure", "ReleaseAfterFailure"} <= visited([told.train.history]).retries
    assert told.run.teardown is TeardownStatus.FAILED
    assert "ConcludeTeardownFailed" in visited([told.teardowns[0].history]).retries
    assert_gone(played.finally_of("last resorts fail at first"))


def test_run_that_no_step_can_conclude_is_concluded_by_the_recorder_in_words(
    played: Played,
) -> None:
    outcome = played.of("run cannot be concluded")

    assert outcome.run.phase is RunPhase.FAILED
    assert outcome.run.reason == f"the workflow ended as FAILED: {BROKEN}"
    assert_gone(outcome)


def test_run_that_no_step_can_release_is_released_by_the_recorder(played: Played) -> None:
    outcome = played.of("run cannot be released")

    assert (outcome.run.phase, outcome.train.status) == (RunPhase.FAILED, "FAILED")
    assert_gone(outcome)


def test_teardown_that_no_step_can_conclude_is_told_by_the_recorder_and_finished_by_the_reaper(
    played: Played,
) -> None:
    told = played.of("teardown cannot be concluded")

    assert {each.status for each in told.teardowns} == {"FAILED"}
    assert len(told.events_of("teardown.failed")) == 1
    assert told.run.teardown is TeardownStatus.FAILED
    assert_gone(played.finally_of("teardown cannot be concluded"))


def test_teardown_that_is_started_again_runs_once(played: Played) -> None:
    outcome = played.of("teardown is started twice")

    assert [each.status for each in outcome.teardowns] == ["SUCCEEDED"]
    assert len(outcome.events_of("teardown.completed")) == 1
    assert_gone(outcome)
