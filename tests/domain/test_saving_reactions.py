"""What a run leaves is saved before the run ends, whatever ends its workflow, and how often."""

from __future__ import annotations

from datetime import timedelta

import pytest
from histories import after, event, take

from stationmaster.domain.errors import RunStopped
from stationmaster.domain.reactions.ending import (
    SAVE_AGAIN_AFTER,
    ChangePhase,
    LeaveUnsaved,
    outcome_of,
)
from stationmaster.domain.reactions.run import POLICY, TORN_DOWN_EARLY, decide
from stationmaster.domain.reactions.seen import ClusterTaken, SilenceExplained, WaitOpen, WorkEnds
from stationmaster.domain.reactions.workflow import (
    Caught,
    Do,
    EndWait,
    EndWork,
    RecordCrash,
    StepBegins,
    WorkflowEnds,
    WorkflowFailed,
    WorkflowFound,
)
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from tests.support.factories import RUN_ID, START
from tests.support.factories import make_run as make_run_in

STOP = Caught("RunStopped", "stopped by U7")
FAILURE = Caught("TrainingFailed", "the loss is nan")
SAVED = {"uri": "s3://b/runs/r/", "num_files": 3, "num_bytes": 9, "manifest_sha256": "0" * 64}


def make_run(phase: RunPhase = RunPhase.RUNNING, **values: object) -> Run:
    """A run that has trained."""
    return make_run_in(phase, training_started_at=START, **values)


def saving(reason: str = "", **values: object) -> Run:
    return make_run(RunPhase.SAVING, reason=reason, saving_since=START, **values)


def ends(run: Run, caught: Caught | None) -> tuple[object, ...]:
    return decide(run, WorkflowEnds(START, caught), POLICY)


@pytest.mark.parametrize(
    ("caught", "stopped", "reason", "outcome"),
    [
        (None, False, "", RunPhase.SUCCEEDED),
        (FAILURE, False, "the loss is nan", RunPhase.FAILED),
        (STOP, True, "stopped by U7", RunPhase.STOPPED),
    ],
)
def test_run_that_trained_is_saved_before_it_ends(caught, stopped, reason, outcome):
    run = make_run(stop_requested_by="U7" if stopped else None)

    assert ends(run, caught) == (ChangePhase(RunPhase.SAVING, reason),)

    run = take(run, event(ev.PhaseChanged, phase=RunPhase.SAVING, reason=reason))
    assert ends(run, caught) == ()
    assert outcome_of(run) is outcome
    run = take(run, event(ev.ResultsSaved, **SAVED))
    (end,) = ends(run, Caught("States.Timeout"))  # what ends the workflow now changes nothing
    assert end.phase is outcome
    assert end.reason == ("the loss is nan" if outcome is RunPhase.FAILED else "")


@pytest.mark.parametrize("caught", [None, FAILURE, STOP])
def test_run_that_never_trained_ends_at_once(caught):
    run = make_run_in(RunPhase.RUNNING)

    (end,) = ends(run, caught)

    assert end.phase.is_terminal


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        (SilenceExplained("the relay fell silent", False), "the relay fell silent"),
        (SilenceExplained("", True), ""),
        (ClusterTaken(), TORN_DOWN_EARLY),
        (WorkflowEnds(START, Caught("States.HeartbeatTimeout")), None),
    ],
)
def test_other_ends_of_a_run_that_trained_are_put_off_as_well(seen, answer):
    put_off = Do.EXPLAIN_SILENCE if answer is None else ChangePhase(RunPhase.SAVING, answer)

    assert decide(make_run(), seen, POLICY) == (put_off,)
    assert decide(saving(), seen, POLICY) == ()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ev.ResultsSaved, SAVED),
        (ev.ResultsLost, {"reason": "its file system is gone"}),
        (ev.ResultsGivenUp, {"user_id": "U7"}),
    ],
)
def test_results_that_are_saved_lost_or_given_up_hold_nothing(kind, fields):
    run = saving("why")
    assert run.has_unsaved_results
    assert decide(run, WorkEnds(), POLICY) == ()

    run = take(run, event(kind, **fields))

    assert not run.has_unsaved_results
    assert decide(run, WorkEnds(), POLICY) == (Do.RELEASE_LEASE,)
    assert ends(run, None) == (ChangePhase(RunPhase.FAILED, "why"),)


def test_lease_of_a_run_that_trains_is_kept_and_of_one_that_ended_is_not():
    assert decide(make_run(), WorkEnds(), POLICY) == ()
    assert decide(make_run_in(RunPhase.RUNNING), WorkEnds(), POLICY) == (Do.RELEASE_LEASE,)
    assert decide(make_run(RunPhase.FAILED), WorkEnds(), POLICY) == (Do.RELEASE_LEASE,)


def test_workflow_that_still_works_for_training_ends():
    run = saving("torn down")

    assert decide(run, StepBegins(), POLICY) == (EndWork(RunStopped, "torn down"),)
    assert decide(run, WaitOpen(START), POLICY) == (EndWait(RunStopped, "torn down"),)
    sentence = f"run {RUN_ID} is saving its results"
    assert decide(saving(), StepBegins(), POLICY) == (EndWork(RunStopped, sentence),)


def test_crashed_workflow_of_a_run_that_trained_is_replaced_to_save_it():
    crash = WorkflowFailed("the workflow was stopped from outside")

    assert decide(make_run(), crash, POLICY) == (
        ChangePhase(RunPhase.SAVING, crash.sentence),
        Do.SAVE_AGAIN,
    )
    done = make_run(job_condition="Succeeded")
    assert decide(done, crash, POLICY) == (ChangePhase(RunPhase.SAVING, ""), Do.SAVE_AGAIN)
    assert decide(saving(passes=2), crash, POLICY) == (Do.SAVE_AGAIN,)
    assert decide(saving(passes=3), crash, POLICY) == (LeaveUnsaved(crash.sentence),)
    assert decide(saving(unsaved_reason="denied"), crash, POLICY) == ()
    saved = take(saving(), event(ev.ResultsSaved, **SAVED))
    assert decide(saved, crash, POLICY) == (ChangePhase(RunPhase.SUCCEEDED, ""),)
    assert decide(make_run_in(RunPhase.RUNNING), crash, POLICY) == (
        ChangePhase(RunPhase.FAILED, crash.sentence),
    )


def test_run_whose_workflow_crashed_late_keeps_the_reason_that_it_had():
    crash = WorkflowFailed("the workflow was stopped from outside")
    failed, stopped = {"trainer_failure": "the loss is nan"}, {"stop_requested_by": "U7"}

    assert decide(make_run(**failed), crash, POLICY) == (
        ChangePhase(RunPhase.SAVING, "the loss is nan"),
        Do.SAVE_AGAIN,
    )
    assert decide(make_run(**stopped), crash, POLICY) == (
        ChangePhase(RunPhase.SAVING, "stopped by U7"),
        Do.SAVE_AGAIN,
    )
    never_trained = make_run_in(RunPhase.RUNNING, **stopped)
    assert decide(never_trained, crash, POLICY) == (ChangePhase(RunPhase.STOPPED, ""),)


def test_unsaved_run_is_saved_again_after_an_hour_and_by_request():
    run = take(saving(), event(ev.ResultsUnsaved, at=60, reason="denied"))
    late = after(seconds=60) + SAVE_AGAIN_AFTER

    assert (run.unsaved_reason, run.passes) == ("denied", 1)
    early = WorkflowFound(late - timedelta(seconds=1), "FAILED")
    assert decide(run, early, POLICY) == ()
    assert decide(run, WorkflowFound(late, "FAILED"), POLICY) == (Do.SAVE_AGAIN,)

    run = take(run, event(ev.SavingRequested, at=90, user_id="U7"))
    assert (run.unsaved_reason, run.passes) == ("", 2)
    assert run.saving_since == after(seconds=90)


@pytest.mark.parametrize(
    ("status", "answer"),
    [("RUNNING", ()), (None, (Do.START_WORKFLOW,)), ("ABORTED", (RecordCrash("ABORTED"),))],
)
def test_workflow_that_should_save_is_looked_after(status, answer):
    assert decide(saving(), WorkflowFound(START, status), POLICY) == answer


@pytest.mark.parametrize(
    ("reason", "outcome"), [("", RunPhase.SUCCEEDED), ("the loss is nan", RunPhase.FAILED)]
)
def test_saved_run_whose_cluster_is_taken_ends_as_its_job_did(reason, outcome):
    run = take(saving(reason), event(ev.ResultsSaved, **SAVED))

    assert decide(run, ClusterTaken("deleted by U7"), POLICY) == (ChangePhase(outcome, reason),)
