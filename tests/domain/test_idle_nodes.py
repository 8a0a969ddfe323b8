"""Training nodes that nobody uses go, and the next run gets them back: when, and what follows."""

from datetime import datetime, timedelta

import pytest

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase
from stationmaster.domain.cluster.keeping import nodes_due
from stationmaster.domain.errors import ClusterFailed, IllegalTransition
from stationmaster.domain.planning.cost import NODES_BACK_S
from stationmaster.domain.reactions.cluster import GoBack, RunWaits, clock_time, decide
from stationmaster.domain.reactions.workflow import Caught, EndWait, WorkflowEnds
from tests.support.factories import START, make_cluster, make_cluster_event, walk
from tests.support.typed import FILE_SYSTEM, finding, kept, parse, refused, start_of

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
