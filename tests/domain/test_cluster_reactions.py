"""What follows when something is seen of a cluster in every phase, and when its nodes go idle."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from stationmaster.domain.approvals import Approval
from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.changes import apply
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase
from stationmaster.domain.cluster.keeping import nodes_due
from stationmaster.domain.errors import ClusterDrained, ClusterFailed, IllegalTransition
from stationmaster.domain.planning.cost import NODES_BACK_S
from stationmaster.domain.reactions.cluster import (
    ChangePhase,
    ClusterWritten,
    FailTeardown,
    GoBack,
    LookedAfter,
    RunWaits,
    TeardownBegins,
    TeardownEnds,
    clock_time,
    consequences,
    decide,
    why_taken,
)
from stationmaster.domain.reactions.workflow import (
    Caught,
    Do,
    EndWait,
    EndWork,
    RecordCrash,
    StepBegins,
    WorkflowEnds,
    WorkflowFound,
)
from tests.support.factories import (
    CLUSTER_ID,
    RUN_ID,
    START,
    make_cluster,
    make_cluster_event,
    walk,
)
from tests.support.factories import make_cluster_event as event
from tests.support.typed import FILE_SYSTEM, finding, kept, parse, refused, start_of

GOING_AWAY = (ClusterPhase.DRAINING, ClusterPhase.RELEASING, ClusterPhase.RELEASED)
UNDER_WAY = (ClusterPhase.REQUESTED, ClusterPhase.PROVISIONING, ClusterPhase.VALIDATING)
BROKEN = Caught("ResourceFailed", "no capacity")


def in_phase(phase: ClusterPhase, reason: str = "") -> Cluster:
    return make_cluster(phase).model_copy(update={"reason": reason})


def released(*, at: float = 0) -> ev.LeaseReleased:
    moment = START + timedelta(seconds=at)
    return event(ev.LeaseReleased, event_id=f"left-{at}", at=moment, run_id=RUN_ID)


@pytest.mark.parametrize("phase", ClusterPhase)
def test_last_lease_that_is_released_or_a_teardown_that_begins_drains_the_cluster_once(phase):
    leased, empty = in_phase(phase, "why"), apply(in_phase(phase, "why"), released())
    drains = () if phase in GOING_AWAY else (ChangePhase(ClusterPhase.DRAINING, "why"),)

    assert decide(leased, released()) == ()
    assert decide(empty, released()) == drains
    assert decide(leased, TeardownBegins()) == drains


def test_change_of_phase_is_the_same_event_whenever_it_follows_from_the_same_cause():
    empty = apply(in_phase(ClusterPhase.READY), released())

    (once,), (again,) = (consequences(empty, released(at=7)) for _ in range(2))
    (of_another_cause,) = consequences(empty, released(at=8))

    assert once == again
    assert (once.at, once.phase) == (START + timedelta(seconds=7), ClusterPhase.DRAINING)
    assert of_another_cause.event_id != once.event_id


@pytest.mark.parametrize("phase", ClusterPhase)
def test_step_begins_only_for_a_cluster_that_is_wanted_and_works(phase):
    reactions = decide(in_phase(phase, "no capacity"), StepBegins())

    if phase in GOING_AWAY:
        drained = f"cluster {CLUSTER_ID} is {phase.value}"
        assert reactions == (EndWork(ClusterDrained, drained),)
    elif phase is ClusterPhase.FAILED:
        assert reactions == (EndWork(ClusterFailed, "no capacity"),)
    else:
        assert reactions == ()


@pytest.mark.parametrize("phase", ClusterPhase)
def test_wait_for_the_cluster_ends_once_it_is_ready_or_never_will_be(phase):
    standing = f"cluster {CLUSTER_ID} is {phase.value}"

    with_reason, without = (
        decide(in_phase(phase, reason), RunWaits(RUN_ID)) for reason in ("no capacity", "")
    )

    if phase in UNDER_WAY:
        assert with_reason == without == ()
    elif phase is ClusterPhase.READY:
        assert with_reason == without == (EndWait(),)
    else:
        assert with_reason == (EndWait(ClusterFailed, "no capacity"),)
        assert without == (EndWait(ClusterFailed, standing),)


@pytest.mark.parametrize("phase", ClusterPhase)
@pytest.mark.parametrize(
    ("seen", "end"),
    [
        (WorkflowEnds(START), ChangePhase(ClusterPhase.READY)),
        (WorkflowEnds(START, BROKEN), ChangePhase(ClusterPhase.FAILED, "no capacity")),
        (WorkflowEnds(START, Caught("E")), ChangePhase(ClusterPhase.FAILED, "E")),
        (WorkflowEnds(START, Caught("")), ChangePhase(ClusterPhase.FAILED, "unknown error")),
        (WorkflowEnds(START, Caught("", "ended")), ChangePhase(ClusterPhase.FAILED, "ended")),
    ],
)
def test_end_of_the_workflow_is_the_end_of_provisioning(phase, seen, end):
    assert decide(in_phase(phase), seen) == ((end,) if phase in UNDER_WAY else ())


@pytest.mark.parametrize("phase", ClusterPhase)
def test_drain_is_announced_to_whoever_leaves_until_the_cluster_is_released(phase):
    drains = phase in (ClusterPhase.DRAINING, ClusterPhase.RELEASING)

    assert decide(in_phase(phase), ClusterWritten()) == ((Do.ANNOUNCE_DRAIN,) if drains else ())


@pytest.mark.parametrize("phase", ClusterPhase)
@pytest.mark.parametrize(("waited_s", "is_late"), [(59, False), (60, True)])
def test_cluster_that_goes_away_gets_its_teardown_after_a_minute(phase, waited_s, is_late):
    since = START + timedelta(hours=1)
    cluster = in_phase(phase).model_copy(update={"phases": [(phase, START), (phase, since)]})

    reactions = decide(cluster, LookedAfter(since + timedelta(seconds=waited_s)))

    if phase in GOING_AWAY:
        assert reactions == ((Do.START_TEARDOWN,) if is_late else ())
    else:
        assert reactions == ((Do.ASK_WORKFLOW,) if phase in UNDER_WAY else ())
    found = WorkflowFound(START + timedelta(seconds=waited_s), None)
    assert decide(cluster, found) == ((Do.START_WORKFLOW,) if is_late else ())
    assert decide(cluster, WorkflowFound(START, "FAILED")) == (RecordCrash("FAILED"),)


@pytest.mark.parametrize("phase", ClusterPhase)
def test_end_of_a_teardown_is_recorded_once_unless_the_cluster_is_released(phase):
    cluster, is_over = in_phase(phase), phase is ClusterPhase.RELEASED
    crash = TeardownEnds(Caught("", "no capacity"))

    assert decide(cluster, TeardownEnds()) == (() if is_over else (Do.COMPLETE_TEARDOWN,))
    for failure in (TeardownEnds(BROKEN), crash):
        assert decide(cluster, failure) == (() if is_over else (FailTeardown("no capacity"),))
    if phase is ClusterPhase.RELEASING:
        failed = cluster.model_copy(update={"teardown_reason": "busy"})
        assert decide(failed, TeardownEnds(BROKEN)) == decide(failed, crash) == ()
        assert decide(failed, TeardownEnds()) == (Do.COMPLETE_TEARDOWN,)


def test_runs_of_a_cluster_that_was_not_approved_hear_why_they_end():
    refused = {"approval": Approval.model_construct(refused_by="U2")}
    cluster = in_phase(ClusterPhase.DRAINING).model_copy(update=refused)
    assert decide(cluster, RunWaits(RUN_ID))[0].sentence == why_taken(cluster)
    assert why_taken(cluster) == f"cluster {CLUSTER_ID} was not approved"


IDLE, MINUTE = timedelta(minutes=30), timedelta(minutes=1)
LATER = START + 2 * IDLE
FAILED = WorkflowEnds(START, Caught("ResourceFailed", "no capacity"))


def at(time: datetime, kind: type[ClusterEvent], **values: object) -> ClusterEvent:
    return make_cluster_event(kind, event_id=f"{kind.__name__} {time} {values}", at=time, **values)


def wants(run_id: str, time: datetime = START) -> ClusterEvent:
    return at(time, ev.LeaseRequested, run_id=run_id, nodes=2)


def ready(time: datetime) -> ClusterEvent:
    return at(time, ev.ClusterPhaseChanged, phase=ClusterPhase.READY)


def idle(idle_s: float = IDLE.total_seconds()) -> Cluster:
    cluster = make_cluster(ClusterPhase.PROVISIONING, nodes=4, leased=False)
    keep = {"idle_s": idle_s, "keep_until": START + 16 * IDLE, "keep_set_at": START}
    return walk(cluster.model_copy(update=keep), ready(START))


def asleep() -> Cluster:
    return walk(idle(), at(START + IDLE, ev.PassBegan, nodes=0), ready(START + IDLE))


def test_nodes_go_once_nobody_has_used_them_for_so_long():
    used = walk(idle(), wants("a"))
    left = walk(used, at(START + MINUTE, ev.LeaseReleased, run_id="a"))

    assert nodes_due(used, LATER) is None
    assert clock_time(left, START + 2 * MINUTE) == START + MINUTE + IDLE
    assert [nodes_due(left, START + MINUTE + each) for each in (IDLE - MINUTE, IDLE)] == [None, 0]
    assert nodes_due(idle(idle_s=0), LATER) is None
    with pytest.raises(IllegalTransition, match="in use and cannot get fewer"):
        walk(used, at(LATER, ev.PassBegan, nodes=0))


def test_nodes_that_are_gone_are_wanted_still_and_come_back_for_a_run():
    gone = walk(asleep(), wants("a", LATER))
    assert (gone.spec.nodes, gone.free_nodes, gone.open_leases) == (4, 0, [])
    assert (nodes_due(gone, LATER), decide(gone, RunWaits("a"))) == (4, ())

    back = walk(gone, at(LATER, ev.PassBegan, nodes=4))

    assert (back.sleeps_since, back.resizes_from, back.open_leases) == (None, 0, [])
    assert [lease.run_id for lease in walk(back, ready(LATER)).open_leases] == ["a"]


def test_nodes_that_do_not_come_back_end_the_wait_and_the_cluster_stays():
    going = walk(idle(), at(LATER, ev.PassBegan, nodes=0))
    assert decide(going, FAILED) == (GoBack(4, "no capacity"),), "those that cannot go stay"
    waking = walk(asleep(), wants("a", LATER), at(LATER, ev.PassBegan, nodes=4))
    assert decide(waking, FAILED) == (GoBack(0, "no capacity"),)

    back = walk(waking, at(LATER, ev.PassFailed, nodes=0, reason="no capacity"))

    sentence = f"cluster {back.label} could not get its training nodes back: no capacity"
    assert decide(back, RunWaits("a")) == (EndWait(ClusterFailed, sentence),)
    done = walk(back, ready(LATER + MINUTE))
    assert nodes_due(done, LATER + IDLE) is None, "it is told, and tries no more"
    assert nodes_due(walk(done, wants("b", LATER + IDLE)), LATER + IDLE) == 4


def test_resize_without_nodes_brings_the_new_number_and_a_deletion_drains():
    assert walk(asleep(), at(LATER, ev.PassBegan, nodes=6), ready(LATER)).free_nodes == 6
    deleted = walk(asleep(), at(LATER, ev.DeletionRequested, user_id="U1"))
    assert (deleted.phase, nodes_due(deleted, LATER)) == (ClusterPhase.DRAINING, None)


def test_plan_of_a_run_on_it_counts_the_time_until_its_nodes_are_back():
    sleeping, awake = (
        start_of("tiny-llama on=team-a", find_cluster=finding(kept(sleeps_since=since))).plan
        for since in (START, None)
    )
    assert sleeping.time_to_first_step_s == awake.time_to_first_step_s + NODES_BACK_S
    assert sleeping.estimated_cost_usd == awake.estimated_cost_usd
    assert "the run brings 4 back and waits for them, about 11 min" in sleeping.warnings[0]


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("idle=9m", "idle=9m is not accepted: expected from 10m to 24h"),
        ("idle=2d", "idle=2d is not accepted"),
        (f"idle=1h cluster=eks:theirs file_system={FILE_SYSTEM}", "cannot be used with cluster=:"),
    ],
)
def test_idle_that_is_too_short_or_of_the_nodes_of_others_is_refused(typed, sentence):
    assert sentence in str(refused(f"cluster create team-a {typed}"))
    assert getattr(parse("cluster create team-a idle=30m"), "idle_s", None) == 1800
