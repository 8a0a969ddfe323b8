"""What follows when something is seen of a cluster: branch by branch, in every phase."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.domain.approvals import Approval
from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.changes import apply
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import ClusterDrained, ClusterFailed
from stationmaster.domain.reactions.cluster import (
    ChangePhase,
    ClusterWritten,
    FailTeardown,
    LookedAfter,
    RunWaits,
    TeardownBegins,
    TeardownEnds,
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
from tests.support.factories import CLUSTER_ID, RUN_ID, START, make_cluster
from tests.support.factories import make_cluster_event as event

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
