"""What follows when something is seen: for every run and every event, and branch by branch."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import IllegalTransition, RunStopped, TrainingFailed
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.reactions.queueing import JobSuspended
from stationmaster.domain.reactions.run import (
    POLICY,
    TORN_DOWN_EARLY,
    AskCapacity,
    CapacityLost,
    ChangePhase,
    ClusterSeen,
    ClusterTaken,
    ExplainSilence,
    LeaseFound,
    ProlongWait,
    Queued,
    RelayHeard,
    ReleaseLease,
    SilenceExplained,
    WaitOpen,
    WorkEnds,
    decide,
    phase_changes,
)
from stationmaster.domain.reactions.workflow import (
    Caught,
    EndWait,
    EndWork,
    RecordCrash,
    StartWorkflow,
    StepBegins,
    WorkflowEnds,
    WorkflowFailed,
    WorkflowFound,
)
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.events import RunEvent, RunPhase
from stationmaster.domain.run.request import Placement
from tests.support import factories
from tests.support.factories import RUN_ID, START

FINAL = [phase for phase in RunPhase if phase.is_terminal]

# Few values, so that events are about the same pods and nodes.
VALUES = {
    "event_id": st.text("0123456789abcdef", min_size=8, max_size=8),
    "run_id": st.just(RUN_ID),
    "at": st.integers(0, 4000).map(lambda second: START + timedelta(seconds=second)),
    "request": st.just(factories.make_request()),
    "pod": st.sampled_from(["w-0", "w-1"]),
    "node": st.sampled_from(["n-0", "n-1"]),
    "exit_code": st.sampled_from([None, 0, 1, 75, 137]),
    "seq": st.integers(0, 9),
    "step": st.integers(0, 9),
    "loss_nats": st.none() | st.floats(0, 9),
    "step_time_s": st.none() | st.floats(0, 9),
}
NUMBERS = {
    int: st.integers(0, 9),
    int | None: st.none() | st.integers(0, 9),
    float: st.floats(0, 9),
    float | None: st.none() | st.floats(0, 9),
}
EVENT_CLASSES = get_args(get_args(RunEvent)[0])
EVENTS = st.sampled_from(EVENT_CLASSES).flatmap(
    lambda kind: st.builds(
        kind,
        **{
            name: VALUES.get(name, NUMBERS.get(field.annotation))
            for name, field in kind.model_fields.items()
            if name in VALUES or field.annotation in NUMBERS
        },
    )
)
FACTS = (
    st.builds(WaitOpen, VALUES["at"])
    | st.builds(RelayHeard, VALUES["at"], st.booleans())
    | st.builds(CapacityLost, st.text(max_size=9))
    | st.builds(SilenceExplained, st.text(max_size=9), st.booleans())
    | st.builds(ClusterSeen, st.sampled_from(ClusterPhase))
    | st.builds(WorkflowEnds, VALUES["at"], st.none() | st.builds(Caught, st.text(max_size=9)))
    | st.builds(WorkflowFailed, st.text(max_size=9))
    | st.builds(WorkflowFound, VALUES["at"], st.sampled_from([None, "RUNNING", "ABORTED"]))
    | st.builds(LeaseFound, VALUES["at"])
    | st.just(WorkEnds())
    | st.just(StepBegins())
    | st.just(ClusterTaken())
    | st.just(JobSuspended("it waits"))
)


def make_run(phase: RunPhase = RunPhase.RUNNING, *events: RunEvent, **values: object) -> Run:
    run = factories.make_run(phase, **values)
    for event in events:
        run = take(run, event)
    return run


def take(run: Run, event: RunEvent) -> Run:
    """The run after an event, as the store keeps it: what cannot be applied is left out."""
    try:
        run = apply(run, event)
    except IllegalTransition:
        return run
    for change in phase_changes(run, event):
        run = apply(run, change)
    return run


def event(event_class: type, *, at: float = 0, **fields: object):
    moment = START + timedelta(seconds=at)
    return event_class(event_id=f"{event_class.__name__}-{at}", run_id=RUN_ID, at=moment, **fields)


def progress(seq: int, *, at: float = 0):
    return event(ev.ProgressReported, at=at, seq=seq, step=seq, total_steps=9, loss_nats=1.0)


def condition(kind: str, message: str = "m"):
    return event(ev.JobConditionChanged, condition=kind, reason="r", message=message)


RUNS = st.builds(
    lambda phase, events: make_run(phase, *events),
    st.sampled_from(RunPhase),
    st.lists(EVENTS, max_size=6),
)
ALIVE = st.builds(
    lambda phase, events: make_run(phase, *events),
    st.sampled_from([RunPhase.RUNNING, RunPhase.RECOVERING]),
    st.lists(EVENTS, max_size=6),
)


def test_every_event_has_a_strategy():
    assert {kind.model_fields["type"].default for kind in EVENT_CLASSES} == set(
        ev.RUN_EVENT.json_schema()["discriminator"]["mapping"]
    )


@given(RUNS | ALIVE, EVENTS | FACTS)
def test_answer_is_total_and_the_same_each_time(run, seen):
    reactions = decide(run, seen, POLICY)

    assert reactions == decide(run, seen, POLICY)
    assert sum(isinstance(each, ChangePhase) for each in reactions) <= 1
    ends = [each for each in reactions if isinstance(each, EndWait)]
    assert len(ends) <= 1
    assert not (ends and ProlongWait() in reactions)


@given(st.sampled_from(FINAL), st.lists(EVENTS, max_size=4), EVENTS | FACTS)
def test_run_that_has_ended_reacts_only_by_ending_its_workflow(phase, before, seen):
    run = make_run(phase, *before)

    reactions = decide(run, seen, POLICY)

    end_of = {WaitOpen: EndWait, StepBegins: EndWork}
    if type(seen) in end_of:
        assert [type(each) for each in reactions] == [end_of[type(seen)]]
    else:
        assert reactions in ((), (ReleaseLease(),))
        assert reactions == () or isinstance(seen, LeaseFound | WorkEnds)


@given(ALIVE, EVENTS)
def test_change_of_phase_is_possible_and_follows_once(run, event):
    run = take(run, event)

    assert not any(isinstance(each, ChangePhase) for each in decide(run, event, POLICY))


@given(ALIVE, EVENTS, VALUES["at"])
def test_wait_that_opens_late_ends_as_the_event_would_have_ended_it(run, event, now):
    run = take(run, event)

    late = decide(run, WaitOpen(now), POLICY)
    at_once = [each for each in decide(run, event, POLICY) if isinstance(each, EndWait)]

    assert at_once in ([], list(late))
    heard = decide(run, RelayHeard(now, heartbeat=False), POLICY)
    assert heard == (() if run.phase.is_terminal else late)


def test_news_of_a_job_whose_results_are_being_saved_end_a_wait_as_saving_does():
    run = make_run(RunPhase.SAVING, condition("Failed"))

    late = decide(run, WaitOpen(START), POLICY)

    assert [type(each) for each in late] == [EndWait]
    assert decide(run, condition("Failed"), POLICY) == late


@pytest.mark.parametrize(
    "cause",
    [
        event(ev.WorkersRestarting, pod="w-0", reason="worker group failed"),
        condition("Restarting"),
        event(ev.PodChanged, pod="w-0", phase="Running", exit_code=137),
        event(ev.ProcessFailed, pod="w-0", process="process 0 was killed by SIGKILL"),
        event(ev.NodeLost, node="n-0", reason="NotReady"),
    ],
)
def test_setback_while_running_is_a_recovery(cause):
    reasons = {
        "workers.restarting": "worker group failed",
        "job.condition_changed": "m",
        "pod.changed": "pod w-0 exited with code 137",
        "process.failed": "pod w-0 failed: process 0 was killed by SIGKILL",
        "node.lost": "node n-0 is lost: NotReady",
    }
    run = apply(make_run(), cause)

    assert decide(run, cause, POLICY) == (ChangePhase(RunPhase.RECOVERING, reasons[cause.type]),)
    assert phase_changes(make_run(RunPhase.PROVISIONING), cause) == []


@pytest.mark.parametrize(
    "event",
    [
        condition("Running"),
        event(ev.ProcessFailed, pod="w-0", process="p", lost_peer=True),
        event(ev.PodChanged, pod="w-0", phase="Running", exit_code=0),
        event(ev.NodeRecovered, node="n-0"),
    ],
)
def test_event_that_is_no_setback_changes_no_phase(event):
    assert phase_changes(apply(make_run(), event), event) == []


def test_pod_that_ends_well_after_another_failed_is_no_setback():
    killed = event(ev.PodChanged, pod="w-0", phase="Running", exit_code=137)
    done = event(ev.PodChanged, pod="w-1", phase="Running", exit_code=0)
    run = apply(apply(make_run(), killed), done)

    assert phase_changes(run, done) == []


def test_pod_that_the_run_does_not_know_is_no_setback():
    assert decide(make_run(), event(ev.PodChanged, pod="w-9", phase="Deleted"), POLICY) == ()


@pytest.mark.parametrize(
    ("goes_on", "words"),
    [
        (event(ev.TrainingResumed, step=40), "resumed from step 40, 5 steps again, after"),
        (event(ev.TrainingResumed, step=44), "resumed from step 44, 1 step again, after"),
        (event(ev.TrainingResumed, step=45), "resumed from step 45 after"),
        (progress(46, at=50), "it goes on with step 46 after"),
    ],
    ids=["steps", "step", "none", "in-place"],
)
def test_recovery_says_where_training_goes_on_and_what_had_set_it_back(goes_on, words):
    killed = event(ev.ProcessFailed, at=9, pod="w-0", process="rank 0 was killed by SIGKILL")
    run = take(make_run(RunPhase.RUNNING, progress(45)), killed)

    after = take(run, goes_on)

    assert after.phase is RunPhase.RUNNING
    assert after.reason == f"{words} pod w-0 failed: rank 0 was killed by SIGKILL"


BARE = event(ev.PodChanged, at=9, pod="w-0", phase="Failed", node="n-0", exit_code=1)
PEER = event(ev.PodChanged, at=9, pod="w-0", phase="Failed", node="n-0", exit_code=75)
KILLED = event(ev.ProcessFailed, at=9, pod="w-0", process="rank 0 was killed by SIGKILL")
LOST = event(ev.NodeLost, at=8, node="n-1", reason="the node was deleted")
NODE = "node n-1 is lost: the node was deleted"


@pytest.mark.parametrize(
    ("news", "why"),
    [
        ((BARE, LOST), NODE),
        ((LOST, BARE), NODE),
        ((PEER, LOST), NODE),
        ((KILLED, LOST), "pod w-0 failed: rank 0 was killed by SIGKILL"),
        ((LOST, KILLED), "pod w-0 failed: rank 0 was killed by SIGKILL"),
    ],
    ids=["exit-first", "node-first", "peer-first", "cause-first", "cause-last"],
)
def test_lost_node_explains_the_exit_codes_of_others_in_any_order(news, why):
    run = make_run(RunPhase.RUNNING, progress(45))

    for seen in news:
        run = take(run, seen)

    assert run.reason == why


@pytest.mark.parametrize(("late_s", "recovered"), [(0, False), (30, False), (31, True)])
def test_step_counts_as_recovery_once_it_cannot_have_been_under_way_at_the_loss(late_s, recovered):
    lost = make_run(
        RunPhase.RUNNING,
        event(ev.PodChanged, pod="w-0", phase="Running", node="n-0"),
        event(ev.PodChanged, at=100, pod="w-0", phase="Deleted"),
    )

    after = take(lost, progress(1, at=100 + late_s))

    assert lost.phase is RunPhase.RECOVERING
    assert (after.phase is RunPhase.RUNNING) is recovered


STOP = event(ev.StopRequested, user_id="U7")
GONE = event(ev.JobDisappeared, job="job-1")
SAID = event(ev.TrainingReportedFailure, reason="the loss is nan")


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([STOP], EndWait(RunStopped, "stopped by U7")),
        ([condition("Succeeded")], EndWait()),
        ([SAID], EndWait(TrainingFailed, "the loss is nan")),
        (
            [GONE],
            EndWait(
                TrainingFailed, "PyTorchJob job-1 was deleted from the cluster before it had ended"
            ),
        ),
        # What was meant comes before what followed from it.
        ([condition("Succeeded"), STOP], EndWait(RunStopped, "stopped by U7")),
        ([SAID, condition("Succeeded")], EndWait()),
        ([condition("Failed"), SAID], EndWait(TrainingFailed, "the loss is nan")),
        ([GONE, condition("Failed", "it failed")], EndWait(TrainingFailed, "it failed")),
    ],
)
def test_end_of_the_job_ends_the_wait_whatever_came_first(events, end):
    attempt = event(
        ev.AttemptStarted,
        attempt_id="a-1",
        cluster_id="c-1",
        placement=Placement(nodes=2, instance_type="m5.2xlarge"),
        job="job-1",
        rendezvous_id="a-1",
    )
    run = make_run(RunPhase.RUNNING, attempt, *events)

    assert decide(run, events[-1], POLICY) == (end,)
    assert decide(run, WaitOpen(START), POLICY) == (end,)


def test_failed_job_is_explained_by_its_first_cause():
    killed = event(ev.PodChanged, pod="w-0", phase="Running", exit_code=137, reason="OOMKilled")
    run = make_run(RunPhase.RUNNING, killed, condition("Failed", "it failed"))

    (restart,) = decide(run, WaitOpen(START), POLICY)

    assert restart.why == "pod w-0 exited with code 137 (OOMKilled); it failed"


def test_restart_after_a_stop_request_is_still_a_recovery():
    run = make_run(RunPhase.RUNNING, STOP)
    restarting = condition("Restarting")

    assert take(run, restarting).phase is RunPhase.RECOVERING


def test_teardown_of_the_cluster_of_a_run_that_has_not_ended_ends_it():
    stopped = make_run(RunPhase.RUNNING, STOP)

    assert decide(make_run(), ClusterTaken(), POLICY) == (
        ChangePhase(RunPhase.FAILED, TORN_DOWN_EARLY),
    )
    assert decide(stopped, ClusterTaken(), POLICY) == (ChangePhase(RunPhase.STOPPED),)
    assert decide(make_run(RunPhase.SUCCEEDED), ClusterTaken(), POLICY) == ()


def test_wait_that_opens_after_the_end_ends_with_the_reason_of_the_run():
    ended = event(ev.PhaseChanged, phase=RunPhase.FAILED, reason=TORN_DOWN_EARLY)
    failed = take(make_run(), ended)
    stopped = make_run(RunPhase.STOPPED)

    assert decide(failed, WaitOpen(START), POLICY) == (EndWait(RunStopped, TORN_DOWN_EARLY),)
    assert decide(stopped, WaitOpen(START), POLICY) == (
        EndWait(RunStopped, f"run {RUN_ID} is stopped already"),
    )


def test_step_that_begins_is_left_alone_until_a_stop_or_the_end():
    ended = make_run(RunPhase.FAILED)

    assert decide(make_run(RunPhase.SUBMITTING), StepBegins(), POLICY) == ()
    assert decide(make_run(RunPhase.SUBMITTING, STOP), StepBegins(), POLICY) == (
        EndWork(RunStopped, "stopped by U7"),
    )
    assert decide(ended, StepBegins(), POLICY) == (
        EndWork(RunStopped, f"run {RUN_ID} is failed already"),
    )
    assert decide(take(ended, STOP), StepBegins(), POLICY) == (
        EndWork(RunStopped, "stopped by U7"),
    )


SILENCE = Caught("States.HeartbeatTimeout")
TIMEOUT = Caught("States.Timeout")


@pytest.mark.parametrize(
    ("events", "caught", "reaction"),
    [
        ([], None, ChangePhase(RunPhase.SUCCEEDED)),
        ([STOP], None, ChangePhase(RunPhase.SUCCEEDED)),
        ([], Caught("RunStopped", "stopped by U7"), ChangePhase(RunPhase.STOPPED)),
        ([STOP], Caught("TransientError", "throttled"), ChangePhase(RunPhase.STOPPED)),
        ([STOP], SILENCE, ChangePhase(RunPhase.STOPPED)),
        ([STOP], TIMEOUT, ChangePhase(RunPhase.STOPPED)),
        ([], SILENCE, ExplainSilence()),
        ([], Caught("TrainingFailed", "it failed"), ChangePhase(RunPhase.FAILED, "it failed")),
        ([], Caught("States.TaskFailed"), ChangePhase(RunPhase.FAILED, "States.TaskFailed")),
        ([], Caught(""), ChangePhase(RunPhase.FAILED, "unknown error")),
    ],
)
def test_end_of_the_workflow_is_the_end_of_the_run(events, caught, reaction):
    run = make_run(RunPhase.RUNNING, *events)

    assert decide(run, WorkflowEnds(START, caught), POLICY) == (reaction,)


def test_workflow_that_ran_out_of_time_says_how_long_the_run_has_trained():
    three_days = WorkflowEnds(START + timedelta(days=3), TIMEOUT)
    submitting = make_run(RunPhase.SUBMITTING)
    began = event(ev.PhaseChanged, at=43_200, phase=RunPhase.RUNNING)

    assert decide(submitting, three_days, POLICY) == (
        ChangePhase(RunPhase.FAILED, "a step of the workflow did not answer in phase submitting"),
    )
    assert decide(take(submitting, began), three_days, POLICY) == (
        ChangePhase(RunPhase.FAILED, "the run reached its time limit after 2.5 days of training"),
    )


def test_run_that_waited_too_long_for_nodes_says_for_how_long():
    queued = make_run(RunPhase.QUEUED)

    assert decide(queued, WorkflowEnds(START + timedelta(days=30), TIMEOUT), POLICY) == (
        ChangePhase(RunPhase.FAILED, "the run waited 30.0 days for nodes of its cluster"),
    )


def test_run_under_which_its_cluster_goes_says_why_where_that_is_known():
    assert decide(make_run(), ClusterTaken("cluster lab was deleted by a person"), POLICY) == (
        ChangePhase(RunPhase.FAILED, "cluster lab was deleted by a person"),
    )


def test_silence_ends_the_run_as_the_cluster_explains_it():
    assert decide(make_run(), SilenceExplained("", succeeded=True), POLICY) == (
        ChangePhase(RunPhase.SUCCEEDED),
    )
    assert decide(make_run(), SilenceExplained("no pod", succeeded=False), POLICY) == (
        ChangePhase(RunPhase.FAILED, "no pod"),
    )


@pytest.mark.parametrize("phase", RunPhase)
def test_run_without_nodes_is_queued_before_anything_else_has_begun(phase):
    begins = phase in (RunPhase.REQUESTED, RunPhase.AWAITING_APPROVAL)

    reactions = decide(make_run(phase), Queued(), POLICY)

    assert reactions == ((ChangePhase(RunPhase.QUEUED),) if begins else ())


@pytest.mark.parametrize("phase", RunPhase)
@pytest.mark.parametrize("of_cluster", ClusterPhase)
def test_run_that_waits_for_its_cluster_shows_what_the_cluster_does(phase, of_cluster):
    before = (RunPhase.REQUESTED, RunPhase.AWAITING_APPROVAL, RunPhase.QUEUED)
    waits = phase in (*before, RunPhase.PROVISIONING)
    shown = {
        ClusterPhase.PROVISIONING: RunPhase.PROVISIONING,
        ClusterPhase.VALIDATING: RunPhase.VALIDATING,
    }.get(of_cluster)

    reactions = decide(make_run(phase), ClusterSeen(of_cluster), POLICY)

    assert reactions == ((ChangePhase(shown),) if waits and shown is not None else ())


@pytest.mark.parametrize("phase", [phase for phase in RunPhase if not phase.is_terminal])
def test_workflow_that_is_over_before_its_run_has_crashed(phase):
    now, run = START + timedelta(days=1), make_run(phase)

    assert decide(run, WorkflowFound(now, "RUNNING"), POLICY) == ()
    assert decide(run, WorkflowFound(now, "TIMED_OUT"), POLICY) == (RecordCrash("TIMED_OUT"),)


@pytest.mark.parametrize(("waited_s", "starts"), [(59, False), (60, True)])
def test_workflow_that_nobody_started_is_started_after_a_minute(waited_s, starts):
    found = WorkflowFound(START + timedelta(seconds=waited_s), None)

    requested = make_run(RunPhase.REQUESTED)

    assert decide(requested, found, POLICY) == ((StartWorkflow(),) if starts else ())
    assert decide(make_run(RunPhase.PROVISIONING), found, POLICY) == ()


@pytest.mark.parametrize(("waited_s", "releases"), [(59, False), (60, True)])
def test_lease_that_outlives_its_run_by_a_minute_is_released(waited_s, releases):
    ended = take(make_run(), event(ev.PhaseChanged, phase=RunPhase.FAILED))
    found = LeaseFound(START + timedelta(seconds=waited_s))

    assert decide(ended, found, POLICY) == ((ReleaseLease(),) if releases else ())
    assert decide(make_run(), found, POLICY) == ()


def test_heartbeat_prolongs_the_wait_and_asks_for_the_nodes_of_a_recovering_run():
    beat, silent = RelayHeard(START, heartbeat=True), RelayHeard(START, heartbeat=False)
    running, recovering = make_run(), make_run(RunPhase.RECOVERING)

    assert decide(running, beat, POLICY) == (ProlongWait(),)
    assert decide(running, silent, POLICY) == ()
    assert decide(recovering, beat, POLICY) == (AskCapacity(), ProlongWait())
    assert decide(recovering, silent, POLICY) == ()


def test_lost_node_of_a_recovering_run_asks_for_its_nodes():
    lost = event(ev.NodeLost, node="n-0", reason="NotReady")

    assert decide(make_run(RunPhase.RUNNING, lost), lost, POLICY) == (AskCapacity(),)


def test_capacity_that_is_lost_ends_the_wait():
    run = make_run(RunPhase.RECOVERING)

    assert decide(run, CapacityLost("the training node group was deleted"), POLICY) == (
        EndWait(TrainingFailed, "the training node group was deleted"),
    )


def test_stalled_run_is_given_up_after_the_policys_limit():
    pending = event(ev.PodChanged, pod="w-0", phase="Pending", reason="Unschedulable")
    run = make_run(RunPhase.RUNNING, pending)
    patient = replace(POLICY, restart_limit=timedelta(hours=2))
    beat = RelayHeard(START + timedelta(hours=1), heartbeat=True)

    assert decide(run, beat, POLICY) == (
        EndWait(TrainingFailed, "pod w-0 is Pending (Unschedulable); no step in 60 minutes"),
    )
    assert decide(run, beat, patient) == (ProlongWait(),)


def test_range_that_trains_without_a_lost_node_is_not_set_back_again_when_its_pod_is_evicted():
    up = event(ev.PodChanged, pod="w-1", phase="Running", node="n-1")
    lost = event(ev.NodeLost, at=10, node="n-1", reason="NotReady")
    step = event(ev.ProgressReported, at=100, seq=1, step=5, total_steps=9, loss_nats=1.0)
    evicted = event(ev.PodChanged, at=300, pod="w-1", phase="Deleted", node="n-1")
    back = event(ev.NodeRecovered, at=310, node="n-1")
    of_a_range = {"request": factories.make_request(min_nodes=1)}

    def phases(*events: RunEvent, **values: object) -> list[RunPhase]:
        return [phase for phase, _ in make_run(RunPhase.RUNNING, *events, **values).phases[1:]]

    trains = [RunPhase.RECOVERING, RunPhase.RUNNING]
    assert phases(up, lost, step, evicted, **of_a_range) == trains
    assert phases(up, lost, step, evicted) == [*trains, RunPhase.RECOVERING]
    assert phases(up, lost, step, back, evicted, **of_a_range) == [*trains, RunPhase.RECOVERING]
    assert phases(up, lost, evicted, **of_a_range) == trains[:1]


@pytest.mark.parametrize(("seen_at", "given_up"), [(2900, False), (20, True)])
def test_range_with_a_pod_that_finds_no_node_is_given_up_only_when_no_step_comes(seen_at, given_up):
    lost = event(ev.NodeLost, at=10, node="n-1", reason="NotReady")
    pending = event(ev.PodChanged, at=11, pod="w-1", phase="Pending", reason="Unschedulable")
    step = event(ev.ProgressReported, at=seen_at, seq=1, step=5, total_steps=9, loss_nats=1.0)
    request = factories.make_request(min_nodes=1)

    run = make_run(RunPhase.RUNNING, lost, pending, step, request=request)

    reactions = decide(run, RelayHeard(START + timedelta(seconds=3000), heartbeat=True), POLICY)
    assert any(isinstance(each, EndWait) for each in reactions) is given_up


@pytest.mark.parametrize(
    "cause",
    [
        event(ev.PodChanged, pod="w-0", phase="Deleted", node="n-0"),
        event(ev.PodChanged, pod="w-0", phase="Running", node="n-0", exit_code=143),
        condition("Restarting"),
        event(ev.ProcessFailed, pod="w-0", process="process 0 exited with code 143"),
        event(ev.NodeLost, node="n-0", reason="the node was deleted"),
    ],
)
def test_run_recovers_from_the_loss_of_a_spot_node_and_says_who_took_it(cause):
    up = event(ev.PodChanged, pod="w-0", phase="Running", node="n-0")
    notice = event(ev.NodeTakenBack, node="n-0")
    run = make_run(RunPhase.RUNNING, up, notice)
    assert run.phase is RunPhase.RUNNING  # it trains on until its pods are ended

    (recovering,) = phase_changes(apply(run, cause), cause)

    assert recovering.phase is RunPhase.RECOVERING
    assert recovering.reason == "spot node n-0 is taken back by AWS"


def test_run_whose_spot_node_is_not_replaced_ends_by_the_limit_of_any_lost_node():
    up = event(ev.PodChanged, pod="w-0", phase="Running", node="n-0")
    notice = event(ev.NodeTakenBack, node="n-0")
    lost = event(ev.NodeLost, node="n-0", reason="the node was deleted")
    run = make_run(RunPhase.RUNNING, up, notice, lost)

    (end,) = decide(run, RelayHeard(START + timedelta(hours=1), heartbeat=True), POLICY)

    assert end == EndWait(
        TrainingFailed,
        "spot node n-0 was taken back by AWS and no other came; no step in 60 minutes",
    )


def test_change_of_phase_is_the_same_event_whenever_it_follows_from_the_same_cause():
    lost = event(ev.NodeLost, node="n-0", reason="NotReady")
    run = apply(make_run(), lost)

    (once,), (again,) = phase_changes(run, lost), phase_changes(run, lost)

    other = event(ev.NodeLost, at=7, node="n-0", reason="NotReady")
    (of_another_cause,) = phase_changes(run, other)

    assert once == again
    assert (once.at, once.phase) == (lost.at, RunPhase.RECOVERING)
    assert of_another_cause.event_id != once.event_id


def queued_run(phase: RunPhase, *events: RunEvent) -> Run:
    request = factories.make_request(job_options=JobOptions(queue="night"))
    phases = [(RunPhase.SUBMITTING, START), (phase, START)]
    return make_run(phase, *events, request=request, phases=phases)


def of_job(kind: str, *, at: float):
    return event(ev.JobConditionChanged, at=at, condition=kind, reason="r", message="m")


def test_job_that_kueue_holds_is_queued_and_then_runs():
    submitted = queued_run(RunPhase.SUBMITTING)

    held = decide(submitted, JobSuspended("no quota"), POLICY)
    queued = queued_run(RunPhase.QUEUED)
    admitted = take(queued, of_job("Running", at=9))

    assert held == (ChangePhase(RunPhase.QUEUED, "no quota"),)
    assert decide(queued, JobSuspended("no quota"), POLICY) == ()
    assert decide(queued, ClusterSeen(ClusterPhase.VALIDATING), POLICY) == ()
    assert (admitted.phase, admitted.reason) == (
        RunPhase.RUNNING,
        "Kueue has admitted the job to queue night",
    )


def test_job_that_kueue_admits_before_its_wait_is_written_runs_all_the_same():
    early = take(queued_run(RunPhase.SUBMITTING), of_job("Running", at=1))
    written = queued_run(RunPhase.QUEUED).model_copy(update={"job_condition": "Running"})

    assert early.phase is RunPhase.SUBMITTING
    assert decide(early, JobSuspended("no quota"), POLICY) == ()
    (change,) = decide(written, JobSuspended("no quota"), POLICY)
    assert change.phase is RunPhase.RUNNING


def test_job_that_kueue_preempts_is_queued_again_and_its_time_there_counts_for_no_limit():
    day = 86_400.0
    pods = {"pod": "w-0", "node": "n-0"}
    preempted = queued_run(
        RunPhase.RUNNING,
        of_job("Running", at=0),
        event(ev.PodChanged, at=1, phase="Running", **pods),
        event(ev.PodChanged, at=60, phase="Failed", reason="Error", exit_code=143, **pods),
        of_job("Suspended", at=61),
    )
    run = take(preempted, event(ev.PodChanged, at=62, phase="Deleted", **pods))
    later = START + timedelta(days=3)
    back = take(run, of_job("Running", at=3 * day))
    back = take(back, event(ev.PodChanged, at=3 * day, phase="Pending", reason="Pulling", **pods))

    assert (run.phase, run.reason) == (
        RunPhase.QUEUED,
        "Kueue has put the job back into queue night",
    )
    assert run.pods == {}
    assert decide(run, WaitOpen(later), POLICY) == ()
    assert decide(run, WorkflowEnds(later, Caught("States.Timeout")), POLICY)[0].reason == (
        "the job waited 3.0 days for Kueue"
    )
    assert back.phase is RunPhase.RUNNING
    assert decide(back, WaitOpen(later + timedelta(minutes=5)), POLICY) == ()
    unheard = take(preempted, of_job("Running", at=3 * day))  # of the deletion
    assert decide(unheard, WaitOpen(later + timedelta(minutes=5)), POLICY) == ()
    (end,) = decide(back, WaitOpen(later + timedelta(hours=1)), POLICY)
    assert end.sentence == "pod w-0 is Pending (Pulling); no step in 60 minutes"


def test_suspended_job_of_no_queue_changes_no_phase():
    run = make_run(RunPhase.RUNNING, of_job("Running", at=0), of_job("Suspended", at=1))

    assert run.phase is RunPhase.RUNNING


def test_run_whose_queued_job_failed_or_was_stopped_ends_as_any_other():
    stopped = take(queued_run(RunPhase.QUEUED), event(ev.StopRequested, user_id="U1"))
    gone = take(queued_run(RunPhase.QUEUED), event(ev.JobDisappeared, job="j"))

    assert decide(stopped, WaitOpen(START), POLICY) == (EndWait(RunStopped, "stopped by U1"),)
    (end,) = decide(gone, WaitOpen(START), POLICY)
    assert end.error is TrainingFailed
