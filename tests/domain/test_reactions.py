"""What follows when something is seen: for every run and every event, and branch by branch."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import get_args

import pytest
from histories import after, condition, ended, event, pod, run_after, step, take
from hypothesis import given, reject
from hypothesis import strategies as st

from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import IllegalTransition, RunStopped, TrainingFailed
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.reactions.queueing import JobSuspended
from stationmaster.domain.reactions.run import (
    POLICY,
    TORN_DOWN_EARLY,
    ChangePhase,
    consequences,
    decide,
)
from stationmaster.domain.reactions.seen import (
    CapacityLost,
    ClusterSeen,
    ClusterTaken,
    LeaseFound,
    Queued,
    RelayHeard,
    SilenceExplained,
    WaitOpen,
    WorkEnds,
)
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
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.events import RunEvent, RunPhase
from stationmaster.domain.run.request import Placement
from tests.support import factories
from tests.support.factories import RUN_ID, START, make_run

FINAL = [phase for phase in RunPhase if phase.is_terminal]

# Few values, so that events are about the same pods and nodes.
VALUES = {
    "event_id": st.text("0123456789abcdef", min_size=8, max_size=8),
    "run_id": st.just(RUN_ID),
    "at": st.integers(0, 4000).map(lambda second: after(seconds=second)),
    "request": st.just(factories.make_request()),
    "pod": st.sampled_from(["w-0", "w-1"]),
    "node": st.sampled_from(["n-0", "n-1"]),
    "exit_code": st.sampled_from([None, 0, 1, 75, 137]),
    "attempt_id": st.sampled_from([f"{RUN_ID}-1", f"{RUN_ID}-2"]),
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
MODELS = [Frozen]
for each in MODELS:
    each.model_rebuild()  # Hypothesis reads the signatures of events and what is in them
    MODELS += each.__subclasses__()
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
    | st.sampled_from([WorkEnds(), StepBegins(), ClusterTaken(), JobSuspended("it waits")])
)
RUNS = st.builds(
    lambda phase, events: run_after(*events, phase=phase),
    st.sampled_from(RunPhase),
    st.lists(EVENTS, max_size=6),
)
ALIVE = st.builds(
    lambda phase, events: run_after(*events, phase=phase),
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
    assert not (ends and Do.PROLONG_WAIT in reactions)


@given(st.sampled_from(FINAL), st.lists(EVENTS, max_size=4), EVENTS | FACTS)
def test_run_that_has_ended_reacts_only_by_ending_its_workflow(phase, before, seen):
    reactions = decide(run_after(*before, phase=phase), seen, POLICY)

    end_of = {WaitOpen: EndWait, StepBegins: EndWork}
    if type(seen) in end_of:
        assert [type(each) for each in reactions] == [end_of[type(seen)]]
    else:
        assert reactions in ((), (Do.RELEASE_LEASE,))
        assert reactions == () or isinstance(seen, LeaseFound | WorkEnds)


@given(ALIVE, EVENTS, VALUES["at"])
def test_change_follows_once_and_a_wait_that_opens_late_ends_as_the_event_would_have(
    run, event, now
):
    try:
        apply(run, event)
    except IllegalTransition:
        reject()  # nothing follows what the store leaves out
    run = take(run, event)

    at_once = decide(run, event, POLICY)
    late = decide(run, WaitOpen(now), POLICY)

    assert not any(isinstance(each, ChangePhase) for each in at_once)
    assert [each for each in at_once if isinstance(each, EndWait)] in ([], list(late))
    heard = decide(run, RelayHeard(now, heartbeat=False), POLICY)
    assert heard == (() if run.phase.is_terminal else late)


RESTARTING = event(ev.WorkersRestarting, pod="w-0", reason="worker group failed")
NOT_READY = event(ev.NodeLost, node="n-0", reason="NotReady")


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (RESTARTING, "worker group failed"),
        (condition("Restarting"), "m"),
        (pod("Running", exit_code=137), "pod w-0 exited with code 137"),
        (ended("process 0 was killed by SIGKILL"), "pod w-0 failed: process 0 was killed by SIG"),
        (NOT_READY, "node n-0 is lost: NotReady"),
        (condition("Running"), ""),
        (ended("p", lost_peer=True), ""),
        (pod("Running", exit_code=0), ""),
        (event(ev.NodeRecovered, node="n-0"), ""),
        (pod("Deleted", "w-9"), ""),
    ],
)
def test_setback_while_running_is_a_recovery(cause, reason):
    known = make_run(RunPhase.RUNNING)
    run = known if getattr(cause, "pod", "") == "w-9" else apply(known, cause)

    reactions = decide(run, cause, POLICY)

    assert [each.phase for each in reactions] == ([RunPhase.RECOVERING] if reason else [])
    assert all(each.reason.startswith(reason) for each in reactions)
    assert consequences(make_run(RunPhase.PROVISIONING), cause) == []


def test_pod_that_ends_well_after_another_failed_is_no_setback():
    done = pod("Running", "w-1", exit_code=0)
    run = apply(apply(make_run(RunPhase.RUNNING), pod("Running", exit_code=137)), done)

    assert consequences(run, done) == []


@pytest.mark.parametrize(
    ("goes_on", "words"),
    [
        (event(ev.TrainingResumed, step=40), "resumed from step 40, 5 steps again, after"),
        (event(ev.TrainingResumed, step=44), "resumed from step 44, 1 step again, after"),
        (event(ev.TrainingResumed, step=45), "resumed from step 45 after"),
        (step(46, at=50), "it goes on with step 46 after"),
    ],
)
def test_recovery_says_where_training_goes_on_and_what_had_set_it_back(goes_on, words):
    run = run_after(step(45), ended("rank 0 was killed by SIGKILL", at=9), goes_on)

    assert run.phase is RunPhase.RUNNING
    assert run.reason == f"{words} pod w-0 failed: rank 0 was killed by SIGKILL"


BARE = pod("Failed", at=9, node="n-0", exit_code=1)
PEER = pod("Failed", at=9, node="n-0", exit_code=75)
KILLED = ended("rank 0 was killed by SIGKILL", at=9)
LOST = event(ev.NodeLost, at=8, node="n-1", reason="the node was deleted")
OF_NODE = "node n-1 is lost: the node was deleted"
OF_KILL = "pod w-0 failed: rank 0 was killed by SIGKILL"


@pytest.mark.parametrize(
    ("news", "why"),
    [
        ((BARE, LOST), OF_NODE),
        ((LOST, BARE), OF_NODE),
        ((PEER, LOST), OF_NODE),
        ((KILLED, LOST), OF_KILL),
        ((LOST, KILLED), OF_KILL),
    ],
)
def test_lost_node_explains_the_exit_codes_of_others_in_any_order(news, why):
    assert run_after(step(45), *news).reason == why


@pytest.mark.parametrize(("late_s", "recovered"), [(0, False), (30, False), (31, True)])
def test_step_counts_as_recovery_once_it_cannot_have_been_under_way_at_the_loss(late_s, recovered):
    lost = run_after(pod("Running", node="n-0"), pod("Deleted", at=100))

    assert lost.phase is RunPhase.RECOVERING
    assert (take(lost, step(1, at=100 + late_s)).phase is RunPhase.RUNNING) is recovered


STOP = event(ev.StopRequested, user_id="U7")
GONE = event(ev.JobDisappeared, job="job-1")
SAID = event(ev.TrainingReportedFailure, reason="the loss is nan")
STOPPED = EndWait(RunStopped, "stopped by U7")


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([STOP], STOPPED),
        ([condition("Succeeded")], EndWait()),
        ([SAID], EndWait(TrainingFailed, "the loss is nan")),
        (
            [GONE],
            EndWait(
                TrainingFailed, "PyTorchJob job-1 was deleted from the cluster before it had ended"
            ),
        ),
        # What was meant comes before what followed from it.
        ([condition("Succeeded"), STOP], STOPPED),
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
    run = run_after(attempt, *events)

    assert decide(run, events[-1], POLICY) == (end,)
    assert decide(run, WaitOpen(START), POLICY) == (end,)


def test_failed_job_is_explained_by_its_first_cause():
    killed = pod("Running", exit_code=137, reason="OOMKilled")

    (restart,) = decide(
        run_after(killed, condition("Failed", "it failed")), WaitOpen(START), POLICY
    )

    assert restart.why == "pod w-0 exited with code 137 (OOMKilled); it failed"


def test_restart_after_a_stop_request_is_still_a_recovery():
    assert run_after(STOP, condition("Restarting")).phase is RunPhase.RECOVERING


def becomes(phase: RunPhase, reason: str = "", *, at: float = 0) -> ev.PhaseChanged:
    return event(ev.PhaseChanged, at=at, phase=phase, reason=reason)


def found(second: float, status: str | None = None) -> WorkflowFound:
    return WorkflowFound(after(seconds=second), status)


def heard(second: float = 0, *, heartbeat: bool = True) -> RelayHeard:
    return RelayHeard(after(seconds=second), heartbeat=heartbeat)


def fails(reason: str) -> ChangePhase:
    return ChangePhase(RunPhase.FAILED, reason)


RUNNING, RECOVERING = make_run(RunPhase.RUNNING), make_run(RunPhase.RECOVERING)
REQUESTED, SUBMITTING = make_run(RunPhase.REQUESTED), make_run(RunPhase.SUBMITTING)
TO_STOP = run_after(STOP)
FAILED = run_after(becomes(RunPhase.FAILED, TORN_DOWN_EARLY))
SILENCE, TIMEOUT = Caught("States.HeartbeatTimeout"), Caught("States.Timeout")
UNFIT = event(ev.PodChanged, pod="w-0", phase="Pending", reason="Unschedulable")
SAVING = run_after(condition("Failed"), phase=RunPhase.SAVING)
SAVES = EndWait(RunStopped, f"run {RUN_ID} is saving its results")
TOO_LONG = "the run reached its time limit after 2.5 days of training"


@pytest.mark.parametrize(
    ("run", "seen", "reactions"),
    [
        # Its cluster is taken, its nodes are lost, or nothing is heard of it.
        (RUNNING, ClusterTaken(), [fails(TORN_DOWN_EARLY)]),
        (RUNNING, ClusterTaken("lab was deleted"), [fails("lab was deleted")]),
        (TO_STOP, ClusterTaken(), [ChangePhase(RunPhase.STOPPED)]),
        (make_run(RunPhase.SUCCEEDED), ClusterTaken(), []),
        (RECOVERING, CapacityLost("it was deleted"), [EndWait(TrainingFailed, "it was deleted")]),
        (run_after(NOT_READY), NOT_READY, [Do.ASK_CAPACITY]),
        (RUNNING, SilenceExplained("", succeeded=True), [ChangePhase(RunPhase.SUCCEEDED)]),
        (RUNNING, SilenceExplained("no pod", succeeded=False), [fails("no pod")]),
        # A batch of its relay.
        (RUNNING, heard(), [Do.PROLONG_WAIT]),
        (RUNNING, heard(heartbeat=False), []),
        (RECOVERING, heard(), [Do.ASK_CAPACITY, Do.PROLONG_WAIT]),
        (RECOVERING, heard(heartbeat=False), []),
        # A wait opens, or a step begins.
        (FAILED, WaitOpen(START), [EndWait(RunStopped, TORN_DOWN_EARLY)]),
        (
            make_run(RunPhase.STOPPED),
            WaitOpen(START),
            [EndWait(RunStopped, f"run {RUN_ID} is stopped already")],
        ),
        (SAVING, WaitOpen(START), [SAVES]),
        (SAVING, condition("Failed"), [SAVES]),
        (SUBMITTING, StepBegins(), []),
        (take(SUBMITTING, STOP), StepBegins(), [EndWork(RunStopped, "stopped by U7")]),
        (FAILED, StepBegins(), [EndWork(RunStopped, f"run {RUN_ID} is failed already")]),
        (take(FAILED, STOP), StepBegins(), [EndWork(RunStopped, "stopped by U7")]),
        # Its workflow ends.
        (RUNNING, WorkflowEnds(START), [ChangePhase(RunPhase.SUCCEEDED)]),
        (TO_STOP, WorkflowEnds(START), [ChangePhase(RunPhase.SUCCEEDED)]),
        (RUNNING, WorkflowEnds(START, Caught("RunStopped", "s")), [ChangePhase(RunPhase.STOPPED)]),
        (TO_STOP, WorkflowEnds(START, Caught("TransientError")), [ChangePhase(RunPhase.STOPPED)]),
        (TO_STOP, WorkflowEnds(START, SILENCE), [ChangePhase(RunPhase.STOPPED)]),
        (TO_STOP, WorkflowEnds(START, TIMEOUT), [ChangePhase(RunPhase.STOPPED)]),
        (RUNNING, WorkflowEnds(START, SILENCE), [Do.EXPLAIN_SILENCE]),
        (RUNNING, WorkflowEnds(START, Caught("TrainingFailed", "it failed")), [fails("it failed")]),
        (RUNNING, WorkflowEnds(START, Caught("States.TaskFailed")), [fails("States.TaskFailed")]),
        (RUNNING, WorkflowEnds(START, Caught("")), [fails("unknown error")]),
        (
            SUBMITTING,
            WorkflowEnds(after(days=3), TIMEOUT),
            [fails("a step of the workflow did not answer in phase submitting")],
        ),
        (
            take(SUBMITTING, becomes(RunPhase.RUNNING, at=43_200)),
            WorkflowEnds(after(days=3), TIMEOUT),
            [fails(TOO_LONG)],
        ),
        (
            make_run(RunPhase.QUEUED),
            WorkflowEnds(after(days=30), TIMEOUT),
            [fails("the run waited 30.0 days for nodes of its cluster")],
        ),
        # The reaper looks after it.
        (REQUESTED, found(59), []),
        (REQUESTED, found(60), [Do.START_WORKFLOW]),
        (make_run(RunPhase.PROVISIONING), found(60), []),
        (RUNNING, found(86_400, "RUNNING"), []),
        (RUNNING, found(86_400, "TIMED_OUT"), [RecordCrash("TIMED_OUT")]),
        (FAILED, LeaseFound(after(seconds=59)), []),
        (FAILED, LeaseFound(after(seconds=60)), [Do.RELEASE_LEASE]),
        (RUNNING, LeaseFound(after(seconds=60)), []),
        # It takes no step.
        (
            run_after(UNFIT),
            heard(3600),
            [EndWait(TrainingFailed, "pod w-0 is Pending (Unschedulable); no step in 60 minutes")],
        ),
    ],
)
def test_what_is_seen_of_a_run_has_its_answer(run, seen, reactions):
    assert decide(run, seen, POLICY) == tuple(reactions)


def test_stalled_run_is_given_up_after_the_policys_limit():
    patient = replace(POLICY, restart_limit=timedelta(hours=2))

    assert decide(run_after(UNFIT), heard(3600), patient) == (Do.PROLONG_WAIT,)


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


ANY_NODES = {"request": factories.make_request(min_nodes=1)}


def test_range_that_trains_without_a_lost_node_is_not_set_back_again_when_its_pod_is_evicted():
    up = pod("Running", "w-1", node="n-1")
    lost = event(ev.NodeLost, at=10, node="n-1", reason="NotReady")
    trained = step(5, at=100)
    evicted = pod("Deleted", "w-1", at=300, node="n-1")
    back = event(ev.NodeRecovered, at=310, node="n-1")

    def phases(*events: RunEvent, **values: object) -> list[RunPhase]:
        return [phase for phase, _ in run_after(*events, **values).phases[1:]]

    trains = [RunPhase.RECOVERING, RunPhase.RUNNING]
    assert phases(up, lost, trained, evicted, **ANY_NODES) == trains
    assert phases(up, lost, trained, evicted) == [*trains, RunPhase.RECOVERING]
    assert phases(up, lost, trained, back, evicted, **ANY_NODES) == [*trains, RunPhase.RECOVERING]
    assert phases(up, lost, evicted, **ANY_NODES) == trains[:1]


@pytest.mark.parametrize(("seen_at", "given_up"), [(2900, False), (20, True)])
def test_range_with_a_pod_that_finds_no_node_is_given_up_only_when_no_step_comes(seen_at, given_up):
    lost = event(ev.NodeLost, at=10, node="n-1", reason="NotReady")
    pending = pod("Pending", "w-1", at=11, reason="Unschedulable")

    reactions = decide(
        run_after(lost, pending, step(5, at=seen_at), **ANY_NODES), heard(3000), POLICY
    )

    assert any(isinstance(each, EndWait) for each in reactions) is given_up


ON_SPOT = (pod("Running", node="n-0"), event(ev.NodeTakenBack, node="n-0"))
DELETED = event(ev.NodeLost, node="n-0", reason="the node was deleted")


@pytest.mark.parametrize(
    "cause",
    [
        pod("Deleted", node="n-0"),
        pod("Running", node="n-0", exit_code=143),
        condition("Restarting"),
        ended("process 0 exited with code 143"),
        DELETED,
    ],
)
def test_run_recovers_from_the_loss_of_a_spot_node_and_says_who_took_it(cause):
    run = run_after(*ON_SPOT)
    assert run.phase is RunPhase.RUNNING  # it trains on until its pods are ended

    (recovering,) = consequences(apply(run, cause), cause)

    assert recovering.phase is RunPhase.RECOVERING
    assert recovering.reason == "spot node n-0 is taken back by AWS"


def test_run_whose_spot_node_is_not_replaced_ends_by_the_limit_of_any_lost_node():
    (end,) = decide(run_after(*ON_SPOT, DELETED), heard(3600), POLICY)

    assert end.sentence == (
        "spot node n-0 was taken back by AWS and no other came; no step in 60 minutes"
    )


def test_change_of_phase_is_the_same_event_whenever_it_follows_from_the_same_cause():
    run = apply(make_run(RunPhase.RUNNING), NOT_READY)

    (once,), (again,) = consequences(run, NOT_READY), consequences(run, NOT_READY)
    later = event(ev.NodeLost, at=7, node="n-0", reason="NotReady")
    (of_another_cause,) = consequences(run, later)

    assert once == again
    assert (once.at, once.phase) == (NOT_READY.at, RunPhase.RECOVERING)
    assert of_another_cause.event_id != once.event_id


def queued_run(phase: RunPhase, *events: RunEvent) -> Run:
    request = factories.make_request(job_options=JobOptions(queue="night"))
    phases = [(RunPhase.SUBMITTING, START), (phase, START)]
    return run_after(*events, phase=phase, request=request, phases=phases)


HELD = JobSuspended("no quota")


def test_job_that_kueue_holds_is_queued_and_then_runs():
    queued = queued_run(RunPhase.QUEUED)
    admitted = take(queued, condition("Running", at=9))

    assert decide(queued_run(RunPhase.SUBMITTING), HELD, POLICY) == (
        ChangePhase(RunPhase.QUEUED, "no quota"),
    )
    assert decide(queued, HELD, POLICY) == ()
    assert decide(queued, ClusterSeen(ClusterPhase.VALIDATING), POLICY) == ()
    assert admitted.phase is RunPhase.RUNNING
    assert admitted.reason == "Kueue has admitted the job to queue night"


def test_job_that_kueue_admits_before_its_wait_is_written_runs_all_the_same():
    early = queued_run(RunPhase.SUBMITTING, condition("Running", at=1))
    written = queued_run(RunPhase.QUEUED).model_copy(update={"job_condition": "Running"})

    assert early.phase is RunPhase.SUBMITTING
    assert decide(early, HELD, POLICY) == ()
    (change,) = decide(written, HELD, POLICY)
    assert change.phase is RunPhase.RUNNING


def test_job_that_kueue_preempts_is_queued_again_and_its_time_there_counts_for_no_limit():
    three_days = 3 * 86_400.0
    preempted = queued_run(
        RunPhase.RUNNING,
        condition("Running"),
        pod("Running", at=1, node="n-0"),
        pod("Failed", at=60, node="n-0", reason="Error", exit_code=143),
        condition("Suspended", at=61),
    )
    run = take(preempted, pod("Deleted", at=62, node="n-0"))
    back = take(
        run,
        condition("Running", at=three_days),
        pod("Pending", at=three_days, node="n-0", reason="Pulling"),
    )

    assert run.phase is RunPhase.QUEUED
    assert run.reason == "Kueue has put the job back into queue night"
    assert run.pods == {}
    assert decide(run, WaitOpen(after(days=3)), POLICY) == ()
    (end,) = decide(run, WorkflowEnds(after(days=3), TIMEOUT), POLICY)
    assert end.reason == "the job waited 3.0 days for Kueue"
    assert back.phase is RunPhase.RUNNING
    unheard = take(preempted, condition("Running", at=three_days))  # of the deletion
    for each in (back, unheard):
        assert decide(each, WaitOpen(after(days=3, minutes=5)), POLICY) == ()
    (end,) = decide(back, WaitOpen(after(days=3, hours=1)), POLICY)
    assert end.sentence == "pod w-0 is Pending (Pulling); no step in 60 minutes"


def test_suspended_job_of_no_queue_changes_no_phase():
    assert run_after(condition("Running"), condition("Suspended", at=1)).phase is RunPhase.RUNNING


def test_run_whose_queued_job_failed_or_was_stopped_ends_as_any_other():
    stopped, gone = queued_run(RunPhase.QUEUED, STOP), queued_run(RunPhase.QUEUED, GONE)

    assert decide(stopped, WaitOpen(START), POLICY) == (STOPPED,)
    (end,) = decide(gone, WaitOpen(START), POLICY)
    assert end.error is TrainingFailed
