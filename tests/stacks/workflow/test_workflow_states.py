"""How a run ends on every way through the workflows; the ways are in workflow_scenarios.

That each run goes the way it is there for is checked with its play, see workflow_routes.
"""

from __future__ import annotations

import re
from collections import Counter

from workflow_routes import seen_of
from workflow_scenarios import BROKEN, finish, plays

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import RunPhase
from tests.chaos.faults import OCCASIONAL, OPERATIONS
from tests.chaos.outcomes import Outcome
from tests.chaos.states import (
    CLUSTER_TASKS,
    ENDING_TASKS,
    LATE_SAVING_TASKS,
    SAVING_TASKS,
    TEARDOWN_TASKS,
    TRAIN_TASKS,
)
from tests.chaos.world import World

# These report that the teardown failed; after any other one what is tagged is still deleted.
DECISIVE = ("BeginTeardown", "VerifyReleased", "ConcludeTeardown")


def assert_gone(outcome: Outcome) -> None:
    assert outcome.teardown is TeardownStatus.COMPLETED
    assert outcome.left == []
    assert outcome.billable_left == []


@plays("plain")
def test_undisturbed_run_trains_succeeds_and_leaves_nothing(world: World, outcome: Outcome) -> None:
    calls = world.runtime.api_calls[outcome.run.run_id] - OCCASIONAL
    of_the_sweep = {
        (service, operation)
        for service, operations in OPERATIONS.items()
        for operation in operations
    }
    assert calls == of_the_sweep - OCCASIONAL
    assert outcome.run.phase_names == [
        "requested",
        "provisioning",
        "validating",
        "submitting",
        "running",
        "saving",
        "succeeded",
    ]
    assert outcome.run.results is not None
    assert outcome.run.results.uri.endswith(f"/runs/{outcome.run.run_id}/")
    assert outcome.run.progress is not None
    assert (outcome.run.progress.step, outcome.run.progress.loss_nats) == (2, 8.25)
    assert outcome.train.status == "SUCCEEDED"
    assert_gone(outcome)


SUCCEEDED, FAILED, STOPPED = RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.STOPPED
BY_RECORDER = f"the workflow ended as FAILED: {BROKEN}"
# How a run ends by itself, its reason as a pattern, and how its execution does: one that has
# concluded a failure is no crash.
ENDS: dict[str, tuple[RunPhase, str, str]] = {
    "every call fails once": (SUCCEEDED, "", "SUCCEEDED"),
    **{f"train: {state} fails": (FAILED, BROKEN, "SUCCEEDED") for state in TRAIN_TASKS},
    **{f"cluster: {state} fails": (FAILED, BROKEN, "SUCCEEDED") for state in CLUSTER_TASKS},
    # Concluded or released late, it stays what it was.
    **{f"train: {state} fails": (SUCCEEDED, "", "SUCCEEDED") for state in ENDING_TASKS},
    "stopped while awaiting": (STOPPED, "", "SUCCEEDED"),
    "stopped at ensure-cluster": (STOPPED, "", "SUCCEEDED"),
    "killed while provisioning": (FAILED, "the workflow was stopped from outside.*", "ABORTED"),
    "job starts late": (SUCCEEDED, "", "SUCCEEDED"),
    "training fails": (FAILED, "the loss is not a number", "SUCCEEDED"),
    "heartbeat stops": (FAILED, ".*the relay in the cluster fell silent.*", "SUCCEEDED"),
    "job is deleted": (
        FAILED,
        r"PyTorchJob \S+ was deleted from the cluster before it had ended",
        "SUCCEEDED",
    ),
    "run cannot be concluded": (FAILED, BY_RECORDER, "FAILED"),
    "cluster cannot be concluded": (FAILED, BY_RECORDER, "SUCCEEDED"),
    "run cannot be released": (FAILED, BROKEN, "FAILED"),
}


@plays(*ENDS, end=list(ENDS.values()))
def test_run_ends_as_it_should_and_leaves_nothing(
    outcome: Outcome, end: tuple[RunPhase, str, str]
) -> None:
    phase, reason, status = end
    assert (outcome.run.phase, outcome.train.status) == (phase, status)
    assert re.fullmatch(reason, outcome.run.reason), outcome.run.reason
    assert_gone(outcome)


@plays("every call is doubled")
def test_run_whose_every_call_is_doubled_creates_everything_and_posts_everything_once(
    outcome: Outcome,
) -> None:
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


@plays("kept: succeeds", "kept: fails", phase=(RunPhase.SUCCEEDED, RunPhase.FAILED))
def test_run_is_taken_out_of_a_cluster_that_stays_before_its_nodes_are_free(
    outcome: Outcome, phase: RunPhase
) -> None:
    assert outcome.run.phase is phase
    released, deleted = (
        outcome.events_of(kind)[0] for kind in ("lease.released", "cluster.deletion_requested")
    )
    assert outcome.events.index(released) < outcome.events.index(deleted)
    assert outcome.cluster is not None
    assert outcome.cluster.deleted_by
    assert_gone(outcome)


@plays("brings data")
def test_run_whose_data_is_in_a_bucket_brings_it_before_it_trains(outcome: Outcome) -> None:
    assert outcome.run.phase is RunPhase.SUCCEEDED
    assert outcome.run.phase_names[2:5] == ["validating", "staging", "submitting"]
    (staged,) = outcome.events_of("data.staged")
    assert (staged.num_files, staged.was_there) == (3, False)
    assert_gone(outcome)


@plays("two nodes are bad")
def test_bad_node_is_replaced_and_the_checks_run_again(outcome: Outcome) -> None:
    began = outcome.events_of("cluster.node_replacement_began")
    (replaced,) = outcome.events_of("cluster.node_replaced")
    assert [event.number for event in began] == [1, 2]
    assert replaced.instance_id == began[0].instance_id != began[1].instance_id
    assert outcome.run.phase is RunPhase.FAILED
    assert_gone(outcome)


@plays("container exits")
def test_container_that_exits_badly_fails_the_run_with_its_pod_code_and_line(
    outcome: Outcome,
) -> None:
    name = f"{outcome.run.run_id}-worker-0"
    assert outcome.run.phase is RunPhase.FAILED
    # A relay that came after a restart has read its line, and may not have seen its code. The job
    # may have given up already, which ends the pods that are left.
    ends = rf"pod {name} (exited with code 3|failed): KeyError: 'model'(; .* backoff limit)?"
    assert re.fullmatch(ends, outcome.run.reason), outcome.run.reason
    codes = {event.exit_code for event in outcome.events_of("pod.changed")}
    assert {3} <= codes <= {None, 3, 143}
    assert_gone(outcome)


@plays("training nodes are deleted")
def test_node_group_deleted_while_it_trains_fails_the_run_and_releases_it(outcome: Outcome) -> None:
    assert outcome.run.phase is RunPhase.FAILED
    assert "recovering" in outcome.run.phase_names
    assert outcome.run.reason.startswith("the training node group ")
    assert_gone(outcome)


@plays(
    *(f"teardown: {state} fails" for state in TEARDOWN_TASKS if state not in DECISIVE),
)
def test_deletion_that_fails_for_good_does_not_keep_the_rest_from_being_deleted(
    outcome: Outcome,
) -> None:
    seen = seen_of(outcome, "teardown")
    assert {"ReleaseCluster", "ReleaseNetwork", "VerifyReleased"} <= seen.states
    assert_gone(outcome)


@plays(*(f"teardown: {state} fails" for state in DECISIVE))
def test_teardown_that_fails_is_reported_and_finished_by_the_reaper(
    world: World, outcome: Outcome
) -> None:
    reaped, finished = finish(world, outcome)

    failure = outcome.events_of("teardown.failed")[0]
    assert failure.reason == BROKEN
    assert failure.left == outcome.left
    assert outcome.teardown is TeardownStatus.FAILED
    assert finished.run.run_id in reaped
    # The end of the run is recorded by its release and by its dead execution: there may be two.
    assert {each.status for each in finished.teardowns[:-1]} == {"FAILED"}
    assert finished.teardowns[-1].status == "SUCCEEDED"
    assert_gone(finished)


@plays("last resorts fail at first")
def test_last_resorts_that_fail_at_first_are_tried_until_they_work(
    world: World, outcome: Outcome
) -> None:
    _, finished = finish(world, outcome)

    assert (outcome.run.phase, outcome.run.reason) == (RunPhase.FAILED, BROKEN)
    assert outcome.teardown is TeardownStatus.FAILED
    assert_gone(finished)


@plays("teardown cannot be concluded")
def test_teardown_that_no_step_can_conclude_is_reported_by_the_recorder_and_finished_by_the_reaper(
    world: World, outcome: Outcome
) -> None:
    _, finished = finish(world, outcome)

    assert {each.status for each in outcome.teardowns} == {"FAILED"}
    assert len(outcome.events_of("teardown.failed")) == 1
    assert outcome.teardown is TeardownStatus.FAILED
    assert_gone(finished)


UNSAVED = (*SAVING_TASKS, *LATE_SAVING_TASKS)


@plays(*(f"train: {state} fails" for state in UNSAVED), state=UNSAVED)
def test_run_that_cannot_be_saved_keeps_all_but_its_training_nodes_until_it_is(
    world: World, outcome: Outcome, state: str
) -> None:
    run_id = outcome.run.run_id
    assert (outcome.run.phase, outcome.run.unsaved_reason) == (RunPhase.SAVING, BROKEN)
    assert outcome.train.status == "FAILED"
    assert [lease.run_id for lease in outcome.cluster.open_leases] == [run_id]
    (failure,) = outcome.events_of("teardown.failed")
    assert failure.reason.startswith(f"the results of run {run_id} are not saved: {BROKEN}")
    deleted = {event.kind: event.name for event in outcome.events_of("resource.deleted")}
    assert deleted == {ResourceKind.NODE_GROUP: "training"}
    assert run_id not in world.reap(), "another teardown would delete nothing"

    world.runtime.mend_run(run_id)
    world.save_again(run_id)
    world.until_rested(run_id, torn_down=True)

    finished = world.outcome(run_id)
    assert finished.run.results is not None
    ends = RunPhase.SUCCEEDED if state in SAVING_TASKS else RunPhase.FAILED
    assert finished.run.phase is ends
    assert len(finished.events_of("results.unsaved")) == 1
    assert [each.status for each in finished.teardowns] == ["FAILED", "SUCCEEDED"]
    assert_gone(finished)


@plays("results are given up")
def test_run_whose_results_are_given_up_ends_without_them(world: World, outcome: Outcome) -> None:
    run_id = outcome.run.run_id

    world.give_up(run_id)
    world.until_rested(run_id, torn_down=True)

    finished = world.outcome(run_id)
    assert (finished.run.phase, finished.run.results) == (RunPhase.SUCCEEDED, None)
    assert_gone(finished)


@plays("late saving fails at first")
def test_saving_that_is_interrupted_is_finished_by_itself(outcome: Outcome) -> None:
    assert outcome.run.results is not None
    assert outcome.events_of("results.unsaved") == []
    assert_gone(outcome)


@plays(
    "train: PushResults fails",
    "train: PushAfterFailure fails",
    phase=(RunPhase.SUCCEEDED, RunPhase.FAILED),
)
def test_push_step_that_fails_changes_nothing(outcome: Outcome, phase: RunPhase) -> None:
    assert outcome.run.phase is phase
    assert outcome.run.results is not None
    assert_gone(outcome)


@plays("pushes its model", "pushes late")
def test_push_that_fails_is_said_and_fails_no_run(outcome: Outcome) -> None:
    assert outcome.run.phase is RunPhase.SUCCEEDED
    (event,) = outcome.events_of("results.not_pushed")
    ways = ("there is no trained model in /", "its workflow ended, or its cluster did not answer")
    assert event.reason.startswith(ways), event.reason
    assert event.repository == "lab/tiny"
    assert_gone(outcome)


@plays("trains late")
def test_job_that_trains_after_nothing_was_to_be_saved_is_saved_at_once(outcome: Outcome) -> None:
    assert (outcome.run.phase, outcome.run.reason) == (RunPhase.FAILED, BROKEN)
    assert outcome.run.results is not None
    assert outcome.events_of("results.unsaved") == []
    assert_gone(outcome)


@plays("unsaved is recorded late")
def test_unsaved_results_are_recorded_once_by_a_step_that_fails_at_first(outcome: Outcome) -> None:
    assert len(outcome.events_of("results.unsaved")) == 1
    assert outcome.run.phase is RunPhase.SAVING
