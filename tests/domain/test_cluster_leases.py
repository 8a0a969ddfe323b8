"""Runs that share a cluster: the queue, how long the cluster is kept, and when its clock rings."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.changes import apply
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase
from stationmaster.domain.cluster.keeping import (
    CHECKS_COUNT_FOR,
    WARN_BEFORE,
    has_old_checks,
    next_time,
    outlives,
)
from stationmaster.domain.errors import ClusterFailed, IllegalTransition
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.cluster import (
    ChangePhase,
    EndKeep,
    GoBack,
    RunWaits,
    TimeReached,
    WarnKeep,
    decide,
)
from stationmaster.domain.reactions.workflow import Caught, EndWait, WorkflowEnds
from tests.support.factories import RUN_ID, START, make_cluster, walk
from tests.support.factories import make_cluster_event as event

A, B, C = (RunId(f"run-{name}") for name in "abc")
HOUR = timedelta(hours=1)
GOING_AWAY = (ClusterPhase.DRAINING, ClusterPhase.RELEASING, ClusterPhase.RELEASED)


def wants(
    run_id: RunId,
    nodes: int,
    *,
    at_least: int | None = None,
    keep_s: int = 0,
    at: datetime = START,
    alone: bool = False,
) -> ClusterEvent:
    return event(
        ev.LeaseRequested, event_id=f"wants-{run_id}", run_id=run_id, nodes=nodes,
        min_nodes=at_least, keep_s=keep_s, at=at, alone=alone,
    )  # fmt: skip


def leaves(run_id: RunId, *, at: datetime = START) -> ClusterEvent:
    return event(ev.LeaseReleased, event_id=f"leaves-{run_id}-{at}", run_id=run_id, at=at)


def ready(nodes: int = 4, *, keep_until: datetime | None = None) -> Cluster:
    cluster = make_cluster(ClusterPhase.READY, nodes=nodes, leased=False)
    return cluster.model_copy(update={"keep_until": keep_until, "keep_set_at": START})


def held(cluster: Cluster) -> dict[str, int]:
    return {lease.run_id: lease.nodes for lease in cluster.open_leases}


def queued(cluster: Cluster) -> list[str]:
    return [waiting.run_id for waiting in cluster.queue]


def test_runs_share_the_nodes_and_the_next_one_waits_for_its_turn():
    shared = walk(ready(), wants(A, 2), wants(B, 2), wants(C, 1))
    assert (held(shared), queued(shared), shared.free_nodes) == ({A: 2, B: 2}, [C], 0)
    assert [decide(shared, RunWaits(run_id)) for run_id in (A, C)] == [(EndWait(),), ()]

    after = walk(shared, leaves(A))

    assert (held(after), queued(after), after.free_nodes) == ({B: 2, C: 1}, [], 1)


def test_nobody_overtakes_the_first_of_the_queue_however_small():
    crowded = walk(ready(), wants(A, 2), wants(B, 4), wants(C, 1))
    assert (held(crowded), queued(crowded)) == ({A: 2}, [B, C])

    first = walk(crowded, leaves(A))

    assert (held(first), queued(first)) == ({B: 4}, [C])
    assert held(walk(first, leaves(B))) == {C: 1}
    given_up = walk(crowded, leaves(B))
    assert (held(given_up), queued(given_up)) == ({A: 2, C: 1}, [])


def test_request_that_is_repeated_keeps_its_place_and_its_lease():
    crowded = walk(ready(), wants(A, 4), wants(B, 1), wants(C, 1))

    again = walk(crowded, wants(B, 1), wants(A, 4))

    assert (held(again), queued(again)) == ({A: 4}, [B, C])


def test_run_that_trains_alone_waits_for_all_and_all_wait_for_it():
    shared = walk(ready(), wants(A, 1), wants(B, 1, alone=True), wants(C, 1))
    assert (held(shared), queued(shared)) == ({A: 1}, [B, C])

    alone = walk(shared, leaves(A))

    assert (held(alone), queued(alone)) == ({B: 1}, [C])
    assert held(walk(alone, leaves(B))) == {C: 1}


@pytest.mark.parametrize(("others", "gets"), [(0, 4), (1, 3), (2, 2), (3, 0)])
def test_range_of_nodes_gets_all_that_are_free_up_to_its_most(others, gets):
    used = walk(ready(), wants(A, others)) if others else ready()

    asked = walk(used, wants(B, 8, at_least=2))

    assert held(asked).get(B, 0) == gets
    assert queued(asked) == ([] if gets else [B])


def test_range_of_nodes_waits_for_its_least_and_is_overtaken_by_nobody():
    crowded = walk(ready(), wants(A, 1), wants(B, 2), wants(C, 4, at_least=2), wants(RUN_ID, 1))
    assert (held(crowded), queued(crowded)) == ({A: 1, B: 2}, [C, RUN_ID])

    after = walk(crowded, leaves(A))

    assert (held(after), queued(after)) == ({B: 2, C: 2}, [RUN_ID])


def test_more_nodes_than_there_are_and_fewer_than_are_used_are_refused():
    assert held(walk(ready(), wants(A, 9, at_least=4))) == {A: 4}
    for most, least in ((5, None), (9, 5)):
        with pytest.raises(IllegalTransition, match="has 4 training nodes, run run-a wants 5"):
            apply(ready(), wants(A, most, at_least=least))
    with pytest.raises(IllegalTransition, match="in use and cannot get fewer nodes"):
        apply(walk(ready(), wants(A, 1)), event(ev.PassBegan, nodes=3))
    assert apply(ready(), event(ev.PassBegan, nodes=3)).spec.nodes == 3


def made_for_a_range() -> Cluster:
    made = make_cluster(ClusterPhase.PROVISIONING, nodes=4, leased=False)
    spec = made.spec.model_copy(update={"min_nodes": 2})
    return walk(made.model_copy(update={"spec": spec}), wants(RUN_ID, 4, at_least=2))


def test_cluster_settles_for_the_nodes_that_came_and_its_run_leases_no_more():
    made = walk(made_for_a_range(), wants(A, 1))
    assert (held(made), queued(made)) == ({RUN_ID: 4}, [A])

    settled = walk(made, event(ev.SizeSettled, nodes=3, reason="no capacity"))

    assert (settled.spec.nodes, settled.spec.min_nodes) == (3, None)
    assert (held(settled), settled.free_nodes) == ({RUN_ID: 3}, 0)
    assert settled.earlier_sizes == [(START, 4)]
    with pytest.raises(IllegalTransition, match="settle for 3 of 3 nodes"):
        apply(settled, event(ev.SizeSettled, nodes=3))


def test_nodes_that_may_not_come_are_given_to_nobody_else():
    left = walk(made_for_a_range(), wants(A, 4), wants(B, 2, at_least=1), leaves(RUN_ID))
    assert (held(left), queued(left)) == ({}, [A, B])

    settled = walk(left, event(ev.SizeSettled, nodes=4))

    assert (held(settled), queued(settled)) == ({A: 4}, [B])


@pytest.mark.parametrize("nodes", [1, 5])
def test_cluster_settles_for_no_other_number_than_it_was_asked_for(nodes):
    with pytest.raises(IllegalTransition, match=f"settle for {nodes} of 4 nodes"):
        apply(made_for_a_range(), event(ev.SizeSettled, nodes=nodes))


@pytest.mark.parametrize("phase", [*GOING_AWAY, ClusterPhase.FAILED])
def test_cluster_that_goes_away_or_failed_takes_no_further_run(phase):
    gone = make_cluster(phase, leased=False)
    for refused in (
        wants(A, 1),
        event(ev.KeepExtended, keep_until=START + HOUR, user_id="U1"),
        event(ev.PassBegan, nodes=2),
    ):
        with pytest.raises(IllegalTransition, match=phase.value):
            apply(gone, refused)


def test_cluster_goes_with_its_last_lease_unless_it_is_kept_or_waited_for():
    kept = ready(keep_until=START + HOUR)
    only_waits = walk(ready(), wants(A, 4), wants(B, 4)).model_copy(update={"leases": {}})

    assert walk(ready(), wants(A, 1), leaves(A)).phase is ClusterPhase.DRAINING
    assert walk(kept, wants(A, 1), leaves(A)).phase is ClusterPhase.READY
    late = leaves(A, at=START + 2 * HOUR)
    assert walk(kept, wants(A, 1), late).phase is ClusterPhase.DRAINING
    assert decide(only_waits, TimeReached(START + HOUR)) == ()


def test_keep_of_a_run_begins_when_it_has_ended_and_never_shortens():
    end = START + HOUR
    kept = walk(ready(), wants(A, 1, keep_s=600), leaves(A, at=end))
    assert (kept.phase, kept.keep_until) == (ClusterPhase.READY, end + timedelta(minutes=10))
    assert walk(kept, leaves(A, at=end + HOUR)).keep_until == kept.keep_until

    long = walk(ready(keep_until=end + 5 * HOUR), wants(A, 1, keep_s=600), leaves(A, at=end))
    assert long.keep_until == end + 5 * HOUR


def test_clock_warns_once_and_then_ends_the_keep():
    until = START + 5 * HOUR
    kept = ready(keep_until=until)
    warning = until - WARN_BEFORE
    assert next_time(kept) == warning
    assert decide(kept, TimeReached(warning - timedelta(seconds=1))) == ()
    assert decide(kept, TimeReached(warning)) == (WarnKeep(until),)

    warned = walk(kept, event(ev.KeepEnding, keep_until=until))

    assert next_time(warned) == until
    assert decide(warned, TimeReached(until - timedelta(seconds=1))) == ()
    assert decide(warned, TimeReached(until)) == (EndKeep(until),)
    over = event(ev.KeepEnded, keep_until=until, at=until)
    assert walk(warned, over).phase is ClusterPhase.DRAINING
    longer = walk(warned, event(ev.KeepExtended, keep_until=until + HOUR, user_id="U1"))
    assert next_time(longer) == until + HOUR - WARN_BEFORE
    short = ready(keep_until=START + timedelta(seconds=40))
    assert next_time(short) == START + timedelta(seconds=30)


def test_end_of_the_keep_finds_the_run_that_has_come_meanwhile_and_goes_with_it():
    until = START + HOUR
    over = event(ev.KeepEnded, keep_until=until, at=until)

    used = walk(ready(keep_until=until), wants(A, 1), over)

    assert used.phase is ClusterPhase.READY
    assert walk(used, leaves(A, at=until + HOUR)).phase is ClusterPhase.DRAINING
    longer = event(ev.KeepExtended, keep_until=until + HOUR, user_id="U1")
    assert walk(ready(keep_until=until), longer, over).phase is ClusterPhase.READY


def test_clock_leaves_a_used_cluster_alone_and_does_not_ring_for_others():
    used = walk(ready(keep_until=START), wants(A, 1))
    assert EndKeep(START) not in decide(used, TimeReached(START + HOUR))
    assert next_time(ready()) is None
    assert next_time(make_cluster(ClusterPhase.DRAINING).model_copy(
        update={"keep_until": START}
    )) is None  # fmt: skip


def test_deletion_takes_a_cluster_in_use_and_ends_every_wait():
    used = walk(ready(keep_until=START + HOUR), wants(A, 4), wants(B, 1))

    gone = walk(used, event(ev.DeletionRequested, user_id="U7"))

    assert (gone.phase, gone.deleted_by) == (ClusterPhase.DRAINING, "U7")
    assert gone.waiting_runs == [A, B]
    for run_id in gone.waiting_runs:
        (end,) = decide(gone, RunWaits(run_id))
        assert isinstance(end, EndWait)
        assert end.error is ClusterFailed


@pytest.mark.parametrize("kept", [True, False])
def test_cluster_that_failed_goes_at_once_without_a_run_and_with_its_last_one(kept):
    until = START + HOUR if kept else None
    failed = event(ev.ClusterPhaseChanged, phase=ClusterPhase.FAILED, reason="no capacity")
    alone = walk(ready(keep_until=until), failed)
    assert (alone.phase, alone.reason) == (ClusterPhase.DRAINING, "no capacity")

    used = walk(ready(keep_until=until), wants(A, 1), failed)
    assert used.phase is ClusterPhase.FAILED
    assert walk(used, leaves(A)).phase is ClusterPhase.DRAINING


def resized(cluster: Cluster, nodes: int) -> Cluster:
    return walk(cluster, event(ev.PassBegan, nodes=nodes, user_id="U1"))


def becomes(phase: ClusterPhase, **values: str) -> ClusterEvent:
    return event(ev.ClusterPhaseChanged, event_id=f"becomes-{phase}", phase=phase, **values)


def test_resize_goes_over_the_cluster_again_and_then_serves_the_queue():
    crowded = walk(ready(), wants(A, 4), wants(B, 2))

    bigger = resized(crowded, 6)

    assert (bigger.phase, bigger.passes, bigger.spec.nodes) == (ClusterPhase.PROVISIONING, 2, 6)
    assert held(walk(bigger, wants(C, 1))) == {A: 4}, "the nodes are not there yet"
    assert bigger.entered_in_pass(ClusterPhase.PROVISIONING) == START
    assert bigger.entered_in_pass(ClusterPhase.READY) is None
    assert decide(bigger, RunWaits(B)) == ()
    done = walk(bigger, becomes(ClusterPhase.READY))
    assert held(done) == {A: 4, B: 2}
    assert decide(done, RunWaits(B)) == (EndWait(),)


def test_resize_that_failed_goes_back_and_keeps_the_runs():
    bigger = resized(walk(ready(), wants(A, 4), wants(B, 2)), 6)
    failed = WorkflowEnds(START, Caught("ResourceFailed", "no capacity"))
    assert decide(bigger, failed) == (GoBack(4, "no capacity"),)

    back = walk(bigger, event(ev.PassFailed, nodes=4, reason="no capacity"))

    assert (back.phase, back.passes, back.spec.nodes) == (ClusterPhase.PROVISIONING, 3, 4)
    assert (held(back), queued(back)) == ({A: 4}, [B])
    done = walk(back, becomes(ClusterPhase.READY))
    assert (done.phase, done.resize_failure) == (ClusterPhase.READY, "no capacity")
    assert decide(done, RunWaits(B)) == ()
    assert held(walk(done, leaves(A))) == {B: 2}


def test_run_that_waited_for_a_size_that_failed_is_told_so():
    bigger = walk(resized(walk(ready(), wants(A, 4)), 6), wants(B, 6))
    assert decide(bigger, RunWaits(B)) == ()

    back = walk(bigger, event(ev.PassFailed, nodes=4, reason="no capacity"))

    (end,) = decide(back, RunWaits(B))
    assert end == EndWait(ClusterFailed, "cluster tiny-llama-0a1b2c3d has 4 training nodes, the "
                          "run wants 6: no capacity")  # fmt: skip


@pytest.mark.parametrize("phase", [ClusterPhase.PROVISIONING, ClusterPhase.VALIDATING])
def test_pass_that_fails_without_a_change_of_size_fails_the_cluster(phase):
    checked = resized(ready(), 4).model_copy(update={"phase": phase})

    failed = WorkflowEnds(START, Caught("CheckFailed", "a node is broken"))

    assert decide(checked, failed) == (ChangePhase(ClusterPhase.FAILED, "a node is broken"),)
    with pytest.raises(IllegalTransition, match="go back to an earlier size"):
        apply(checked, event(ev.PassFailed, nodes=4, reason="no capacity"))


def test_checks_are_old_after_a_day_and_for_a_run_that_is_alone():
    kept = walk(make_cluster(ClusterPhase.VALIDATING, nodes=4, leased=False),
                becomes(ClusterPhase.READY))  # fmt: skip
    alone, later = walk(kept, wants(A, 2)), START + CHECKS_COUNT_FOR

    assert has_old_checks(alone, A, later)
    assert not has_old_checks(alone, A, later - timedelta(seconds=1))
    assert not has_old_checks(walk(alone, wants(B, 2)), A, later)
    assert not has_old_checks(resized(alone, 4), A, later)


def test_run_that_leases_a_cluster_again_keeps_its_earlier_lease_on_record():
    kept = ready(keep_until=START + 9 * HOUR)
    once = walk(kept, wants(RUN_ID, 1), leaves(RUN_ID, at=START + HOUR))

    again = walk(once, wants(RUN_ID, 2, at=START + 2 * HOUR))

    assert [lease.nodes for lease in again.past_leases] == [1]
    assert held(again) == {RUN_ID: 2}


@pytest.mark.parametrize(
    ("kept", "phase", "stays"),
    [
        (True, ClusterPhase.READY, True),
        (True, ClusterPhase.PROVISIONING, True),
        (False, ClusterPhase.READY, False),
        (True, ClusterPhase.FAILED, False),
        (True, ClusterPhase.DRAINING, False),
    ],
)
def test_run_is_taken_out_of_a_cluster_whose_nodes_others_may_get(kept, phase, stays):
    requester = ev.Requester(team_id="T1", channel_id="C1", user_id="U1") if kept else None
    used = walk(ready().model_copy(update={"requester": requester}), wants(A, 4), wants(B, 1))
    used = used.model_copy(update={"phase": phase})

    assert outlives(used, A) is stays
    assert not outlives(used, B), "it only waits"
    assert not outlives(used, C)
