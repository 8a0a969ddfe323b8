"""What follows from a lost pod, node or job, and when a run that takes no step is given up."""

from datetime import timedelta

import pytest
from histories import after, event, step, take

from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import WaitOpen
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.attempts import first_assignment, next_assignment
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.stall import waits_until
from tests.support.factories import RUN_ID, START, make_run

RESTART_LIMIT = POLICY.restart_limit
MUCH_LATER = START + timedelta(minutes=41, seconds=10)


def why_stalled(run, now):
    """The sentence with which a wait for the run would end, or None while it lasts."""
    return next((end.sentence for end in decide(run, WaitOpen(now), POLICY)), None)


class History:
    """A run that takes in facts as the store does: with what follows from them."""

    def __init__(self, phase=RunPhase.RUNNING):
        self.run = make_run(phase)

    def take(self, event_class, second=0, **fields):
        self.run = take(self.run, event(event_class, at=second, **fields))
        return self

    def pod(self, name, phase, second=0, **fields):
        return self.take(ev.PodChanged, second, pod=name, phase=phase, **fields)

    def step(self, number, second, **fields):
        self.run = take(self.run, step(number, at=second, **fields))
        return self


def running():
    return History().pod("w-0", "Running", node="n-0").pod("w-1", "Running", node="n-1").step(1, 1)


@pytest.mark.parametrize(
    ("phase", "fields", "reason"),
    [
        ("Deleted", {}, "pod w-1 was deleted"),
        ("Pending", {"reason": "Unschedulable"}, "pod w-1 is Pending (Unschedulable)"),
        ("Failed", {"reason": "Evicted", "message": "low on disk"}, "Evicted: low on disk"),
        ("Running", {"reason": "CrashLoopBackOff"}, "pod w-1 is Running (CrashLoopBackOff)"),
    ],
)
def test_pod_that_stops_running_is_a_recovery(phase, fields, reason):
    run = running().pod("w-1", phase, 5, **fields).run

    assert run.phase is RunPhase.RECOVERING
    assert reason in run.reason


@pytest.mark.parametrize("end", [{"phase": "Succeeded"}, {"phase": "Running", "exit_code": 0}])
def test_pod_that_goes_once_another_has_done_its_work_is_no_setback(end):
    phase = end.pop("phase")
    run = running().pod("w-0", phase, 5, reason="Completed", **end).pod("w-1", "Deleted", 6).run

    assert run.phase is RunPhase.RUNNING
    assert why_stalled(run, MUCH_LATER) is None


def test_step_after_the_pod_runs_again_is_a_recovery_at_once():
    history = running().pod("w-1", "Running", 10, exit_code=137, reason="Error").step(2, 11)
    assert history.run.phase is RunPhase.RECOVERING

    history.pod("w-1", "Running", 12, restarts=1).step(3, 13)

    assert history.run.phase is RunPhase.RUNNING


def test_pods_that_never_come_back_are_given_up_with_the_lost_node_first():
    history = running().take(ev.NodeLost, 10, node="n-1", reason="the node was deleted")
    history.pod("w-1", "Deleted", 11)
    history.pod("w-1", "Pending", 12, reason="Unschedulable", message="0/2 nodes are available")

    assert why_stalled(history.run, after(seconds=10) + RESTART_LIMIT) is None
    assert why_stalled(history.run, MUCH_LATER) == (
        "node n-1 is lost: the node was deleted; "
        "pod w-1 is Pending (Unschedulable: 0/2 nodes are available); no step in 41 minutes"
    )


def taken_back():
    """A run whose spot node goes, whose job fails of that, and whose next attempt has no node."""
    first = first_assignment(RUN_ID, make_run().request)
    history = running().take(ev.AttemptStarted, 2, **dict(first))
    history.take(ev.NodeTakenBack, 9, node="n-1")
    history.take(ev.NodeLost, 10, node="n-1", reason="the node was deleted")
    history.pod("w-1", "Failed", 11, exit_code=137, node="n-1")
    history.take(ev.JobConditionChanged, 12, condition="Failed", reason="r", message="m")
    second = next_assignment(RUN_ID, first, number=2)
    history.take(ev.AttemptStarted, 60, **dict(second), after="r")
    return history.pod("w-0", "Running", 61, node="n-0").pod("w-1", "Pending", 61)


def test_next_attempt_waits_for_a_node_up_to_the_limit_and_trains_once_one_has_come():
    run = taken_back().run
    until = waits_until(run, restart_limit=RESTART_LIMIT)
    assert until == after(seconds=10) + RESTART_LIMIT
    assert why_stalled(run, until) is None
    assert "no other came; pod w-1 is P" in why_stalled(run, until + timedelta(seconds=1))

    back = taken_back().pod("w-1", "Running", 1500, node="n-2")
    back.take(ev.TrainingResumed, 1510, step=1).step(2, 1520)

    assert (back.run.phase, back.run.attempt_number) == (RunPhase.RUNNING, 2)
    assert why_stalled(back.run, MUCH_LATER + timedelta(days=1)) is None


def test_pod_on_a_node_that_stays_lost_is_given_up_with_the_nodes_reason():
    run = running().take(ev.NodeLost, 10, node="n-1", reason="NodeStatusUnknown").run

    assert why_stalled(run, MUCH_LATER) == (
        "node n-1 is lost: NodeStatusUnknown; no step in 41 minutes"
    )


def test_node_that_training_goes_on_without_is_not_held_against_the_run():
    history = running().take(ev.NodeLost, 10, node="n-1", reason="NodeStatusUnknown")
    history.pod("w-1", "Running", 40, node="n-2").step(2, 41)
    history.pod("w-0", "Running", 50, reason="CrashLoopBackOff")

    assert "n-1" not in (why_stalled(history.run, MUCH_LATER) or "n-1")


def test_waiting_begins_anew_with_each_word_of_the_trainer():
    history = running().pod("w-1", "Running", 10, reason="CrashLoopBackOff")
    history.take(ev.TrainingEvaluated, 2000, step=1, loss_nats=1.0)

    assert why_stalled(history.run, after(seconds=2000) + RESTART_LIMIT) is None
    assert why_stalled(history.run, after(seconds=2001) + RESTART_LIMIT) is not None


def test_pod_that_is_down_for_ever_new_reasons_is_given_up_from_the_first():
    history = running().pod("w-1", "Pending", 10, reason="ContainerCreating")
    history.pod("w-1", "Pending", 1000, reason="ErrImagePull")
    history.pod("w-1", "Pending", 2000, reason="ImagePullBackOff")

    assert why_stalled(history.run, after(seconds=11) + RESTART_LIMIT) == (
        "pod w-1 is Pending (ImagePullBackOff); no step in 36 minutes"
    )


def test_run_whose_pods_run_or_are_starting_is_left_to_the_trainer():
    back = running().take(ev.NodeLost, 10, node="n-1", reason="NodeStatusUnknown")
    back.take(ev.NodeRecovered, 20, node="n-1").step(2, 21)
    starting = History().pod("w-0", "Pending", reason="ContainerCreating")
    without_steps = History().pod("w-0", "Running")
    without_steps.take(ev.WorkersRestarting, 10, pod="w-0", reason="r")

    assert (back.run.phase, starting.run.phase) == (RunPhase.RUNNING, RunPhase.RUNNING)
    assert without_steps.run.phase is RunPhase.RECOVERING
    for history in (running(), back, without_steps):
        assert why_stalled(history.run, MUCH_LATER + timedelta(days=30)) is None


def test_recovery_that_does_not_end_is_given_up_and_long_steps_get_their_time():
    history = running().step(2, 5, step_time_s=60.0)
    history.take(ev.WorkersRestarting, 10, pod="w-0", reason="process 1 was killed by SIGKILL")

    limit = RESTART_LIMIT + timedelta(seconds=20 * 60)

    assert why_stalled(history.run, after(seconds=10) + limit) is None
    assert why_stalled(history.run, after(seconds=11) + limit) == (
        "training did not recover (process 1 was killed by SIGKILL) although all pods run; "
        "no step in 56 minutes"
    )


def test_cause_that_is_reported_after_its_consequences_becomes_the_reason_of_the_recovery():
    history = running().take(
        ev.ProcessFailed, 10, pod="w-0", process="process 0 exited with code 75", lost_peer=True
    )
    history.take(ev.WorkersRestarting, 10, pod="w-0", reason="process 0 lost another worker")
    assert history.run.reason == "process 0 lost another worker"

    history.take(ev.ProcessFailed, 10, pod="w-1", process="process 3 was killed by SIGKILL")
    history.pod("w-0", "Running", 11, exit_code=1, reason="Error")

    assert history.run.phase is RunPhase.RECOVERING
    assert history.run.reason == "pod w-1 failed: process 3 was killed by SIGKILL"


@pytest.mark.parametrize(
    ("reason", "final"),
    [
        ("DistBackendError: Connection closed by peer [10.0.1.2]:4711", False),
        ("the loss is not a number", True),
    ],
)
def test_trainer_that_lost_its_peer_has_not_failed_for_good(reason, final):
    history = running().take(ev.TrainingReportedFailure, 10, reason=reason)

    assert bool(history.run.trainer_failure) is final


def test_failures_that_training_recovered_from_are_forgotten():
    history = running().pod("w-1", "Running", 10, exit_code=9, reason="Error")
    history.pod("w-1", "Running", 12, restarts=1)
    assert [failure.pod for failure in history.run.failures] == ["w-1"]

    history.take(ev.TrainingResumed, 20, step=1)

    assert history.run.failures == []
