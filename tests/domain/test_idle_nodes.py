"""Training nodes that nobody uses go, and the next run gets them back: when, and what follows."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase
from stationmaster.domain.cluster.keeping import nodes_due
from stationmaster.domain.cluster.spec import Reservation
from stationmaster.domain.commands.requests import CreateCluster
from stationmaster.domain.errors import ClusterFailed, IllegalTransition
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.questions import FoundReservation
from stationmaster.domain.planning.cost import NODES_BACK_S
from stationmaster.domain.reactions.cluster import GoBack, RunWaits, clock_time, decide
from stationmaster.domain.reactions.workflow import Caught, EndWait, WorkflowEnds
from tests.support.factories import START, make_cluster, walk
from tests.support.factories import make_cluster_event as event
from tests.support.typed import FILE_SYSTEM, finding, kept, parse, refused, start_of

A, B = RunId("run-a"), RunId("run-b")
IDLE = timedelta(minutes=30)
MINUTE = timedelta(minutes=1)
FAILED = WorkflowEnds(START, Caught("ResourceFailed", "no capacity"))


def idle(**values: object) -> Cluster:
    cluster = make_cluster(ClusterPhase.READY, nodes=4, leased=False)
    made = {"idle_s": IDLE.total_seconds(), "keep_until": START + timedelta(hours=8)}
    phases = [(ClusterPhase.REQUESTED, START), (ClusterPhase.READY, START)]
    return cluster.model_copy(update={**made, "phases": phases, **values})


def wants(run_id: RunId, nodes: int = 2, *, at: datetime = START) -> ClusterEvent:
    about = {"event_id": f"wants-{run_id}", "run_id": run_id, "at": at}
    return event(ev.LeaseRequested, nodes=nodes, **about)


def leaves(run_id: RunId, *, at: datetime) -> ClusterEvent:
    return event(ev.LeaseReleased, event_id=f"leaves-{run_id}", run_id=run_id, at=at)


def begins(nodes: int, *, at: datetime = START) -> ClusterEvent:
    return event(ev.PassBegan, event_id=f"pass-{nodes}-{at}", nodes=nodes, at=at)


def becomes_ready(at: datetime = START) -> ClusterEvent:
    about = {"event_id": f"ready-{at}", "phase": ClusterPhase.READY, "at": at}
    return event(ev.ClusterPhaseChanged, **about)


def asleep() -> Cluster:
    return walk(idle(), begins(0, at=START + IDLE), becomes_ready(START + IDLE + MINUTE))


def test_nodes_go_once_nobody_has_used_them_for_so_long():
    used = walk(idle(), wants(A))
    left = walk(used, leaves(A, at=START + MINUTE))

    assert nodes_due(used, START + 9 * IDLE) is None
    assert clock_time(left, START + 2 * MINUTE) == START + MINUTE + IDLE
    assert [nodes_due(left, START + MINUTE + each) for each in (IDLE - MINUTE, IDLE)] == [None, 0]
    assert nodes_due(idle(idle_s=0), START + 9 * IDLE) is None
    with pytest.raises(IllegalTransition, match="in use and cannot get fewer"):
        walk(used, begins(0))


def test_nodes_that_are_gone_are_wanted_still_and_nobody_is_given_them():
    gone = walk(idle(), begins(0, at=START + IDLE))
    assert (gone.phase, gone.passes, gone.spec.nodes) == (ClusterPhase.PROVISIONING, 2, 4)

    gone = walk(gone, wants(A), becomes_ready())

    assert (gone.sleeps_since, gone.free_nodes, gone.open_leases) == (START + IDLE, 0, [])
    assert nodes_due(gone, START + IDLE) == 4
    assert decide(gone, RunWaits(A)) == ()
    back = walk(gone, begins(4))
    assert (back.sleeps_since, back.resizes_from, back.open_leases) == (None, 0, [])
    (lease,) = walk(back, becomes_ready()).open_leases
    assert (lease.run_id, lease.nodes) == (A, 2)


def test_nodes_that_do_not_come_back_end_the_wait_and_the_cluster_stays():
    later = START + 2 * IDLE
    waking = walk(asleep(), wants(A, at=later), begins(4, at=later))
    assert decide(waking, FAILED) == (GoBack(0, "no capacity"),)

    back = walk(waking, event(ev.PassFailed, nodes=0, reason="no capacity", at=later))

    sentence = f"cluster {back.label} could not get its training nodes back: no capacity"
    assert decide(back, RunWaits(A)) == (EndWait(ClusterFailed, sentence),)
    done = walk(back, becomes_ready(later + MINUTE))
    assert (done.phase, done.spec.nodes) == (ClusterPhase.READY, 4)
    assert nodes_due(done, later + IDLE) is None, "it is told, and tries no more"
    assert nodes_due(walk(done, wants(B, at=later + IDLE)), later + IDLE) == 4
    assert decide(walk(done, wants(B, at=later + IDLE)), RunWaits(B)) == ()


def test_nodes_that_could_not_go_stay_for_as_long_again():
    going = walk(idle(), begins(0, at=START + IDLE))
    assert decide(going, FAILED) == (GoBack(4, "no capacity"),)
    failed = event(ev.PassFailed, nodes=4, reason="no capacity", at=START + IDLE)
    stays = walk(going, failed, becomes_ready(START + IDLE))
    assert (stays.sleeps_since, clock_time(stays, START + IDLE)) == (None, START + 2 * IDLE)


def test_resize_without_nodes_brings_the_new_number_and_a_deletion_ends_it():
    bigger = walk(asleep(), begins(6), becomes_ready())
    assert (bigger.sleeps_since, bigger.free_nodes) == (None, 6)
    deleted = walk(asleep(), event(ev.DeletionRequested, user_id="U1"))
    assert deleted.phase is ClusterPhase.DRAINING
    assert nodes_due(deleted, START + 9 * IDLE) is None


def test_plan_of_a_run_on_it_counts_the_time_until_its_nodes_are_back():
    sleeping, awake = (
        start_of("tiny-llama on=team-a", find_cluster=finding(kept(sleeps_since=since))).plan
        for since in (START, None)
    )

    assert sleeping.time_to_first_step_s == awake.time_to_first_step_s + NODES_BACK_S
    assert sleeping.estimated_cost_usd == awake.estimated_cost_usd
    assert "the run brings 4 back and waits for them, about 11 min" in sleeping.warnings[0]


def test_idle_is_typed_with_a_new_cluster():
    made = parse("cluster create team-a idle=30m")
    assert isinstance(made, CreateCluster)
    assert made.idle_s == 1800


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("idle=9m", "idle=9m is not accepted: expected from 10m to 24h"),
        ("idle=2d", "idle=2d is not accepted: expected from 10m to 24h"),
        ("idle=soon", "idle=soon is not accepted: expected a duration"),
        (
            f"idle=1h cluster=eks:theirs file_system={FILE_SYSTEM}",
            "idle=1h cannot be used with cluster=: the nodes of EKS cluster theirs are not the "
            "product's, and stay; leave idle= out",
        ),
        (
            "idle=1h capacity=odcr:cr-0123456789abcdef0",
            "idle=1h cannot be used with capacity=: reservation cr-0123456789abcdef0 is paid for "
            "whether its nodes run or not; leave idle= out",
        ),
    ],
)
def test_idle_that_is_too_short_or_of_nodes_that_are_paid_anyway_is_refused(typed, sentence):
    found = FoundReservation(
        reservation=Reservation(reservation_id="cr-0123456789abcdef0", zone="us-west-2b"),
        instance_type="p5.48xlarge",
        available=4,
        total=8,
    )
    said = refused(f"cluster create team-a {typed}", find_reservation=lambda _id: found)
    assert sentence in str(said)
