"""How a cluster's nodes are shared between runs on ranges of nodes, and who pays for them."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.leases import MAX_SIZES, Lease, fair_shares
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.cluster import decide
from stationmaster.domain.reactions.leasing import RunTrains, ShareNodes
from tests.support.factories import START, make_cluster, walk
from tests.support.factories import make_cluster_event as event

A, B, C = (RunId(f"run-{name}") for name in "abc")


def hours(count: float):
    return START + timedelta(hours=count)


@st.composite
def leases(draw: st.DrawFn) -> list[Lease]:
    """Up to six leases in any order of age, of fixed numbers and of ranges, also limited ones."""
    ages = draw(st.permutations(range(draw(st.integers(1, 6)))))
    made = []
    for number, age in enumerate(ages):
        least, held = draw(st.integers(1, 4)), draw(st.integers(1, 8))
        bounds = {"min_nodes": least, "most_nodes": draw(st.integers(least, 9))}
        elastic = bounds if draw(st.booleans()) else {}
        run_id = RunId(f"run-{number}")
        made.append(Lease(run_id=run_id, nodes=held, granted_at=hours(age), **elastic))
    return made


@given(leases(), st.integers(0, 10), st.integers(0, 12))
def test_shares_stay_in_their_ranges_and_take_no_more_than_there_is(found, spare, wanted):
    nodes = sum(lease.nodes for lease in found) + spare

    given_out = fair_shares(found, nodes=nodes, wanted=wanted)

    for lease in found:
        assert lease.fewest <= given_out[lease.run_id] <= lease.most
    assert sum(given_out.values()) <= nodes
    settled = [lease.resized(given_out[lease.run_id], hours(9)) for lease in found]
    assert fair_shares(settled, nodes=nodes, wanted=wanted) == given_out, "it settles at once"


@given(leases(), st.integers(0, 10), st.integers(1, 12))
def test_newest_gives_first_and_only_where_that_is_enough(found, spare, wanted):
    nodes = sum(lease.nodes for lease in found) + spare
    before = {lease.run_id: min(lease.nodes, lease.most) for lease in found}

    after = fair_shares(found, nodes=nodes, wanted=wanted)

    gave = {run_id for run_id in before if after[run_id] < before[run_id]}
    assert all(after[run_id] <= before[run_id] for run_id in before), "nobody grows meanwhile"
    if gave:
        assert nodes - sum(after.values()) == wanted, "neither too few nor more than is wanted"
        oldest = min(lease.granted_at for lease in found if lease.run_id in gave)
        newer = [lease for lease in found if lease.granted_at > oldest]
        assert all(after[lease.run_id] == lease.fewest for lease in newer)


@given(leases(), st.integers(0, 10))
def test_free_nodes_go_to_whoever_has_the_fewest_until_none_is_left(found, spare):
    nodes = sum(lease.nodes for lease in found) + spare

    after = fair_shares(found, nodes=nodes, wanted=0)

    could_grow = [lease for lease in found if after[lease.run_id] < lease.most]
    assert not could_grow or sum(after.values()) == nodes
    grew = [each for each in found if after[each.run_id] > min(each.nodes, each.most)]
    for lease in grew:
        assert all(after[lease.run_id] <= after[other.run_id] + 1 for other in could_grow)


def shared_by(*wants: tuple[RunId, int, int | None], nodes: int = 4) -> Cluster:
    """Runs that have asked for so many nodes, the last one for at least so many."""
    asked = [
        event(ev.LeaseRequested, event_id=run_id, run_id=run_id, nodes=most, min_nodes=least)
        for run_id, most, least in wants
    ]
    return walk(make_cluster(ev.ClusterPhase.READY, nodes=nodes, leased=False), *asked)


def resized(run_id: RunId, nodes: int, at: float = 0):
    about = {"event_id": f"{run_id}-{at}", "run_id": run_id, "at": hours(at)}
    return event(ev.LeaseResized, nodes=nodes, **about)


def limited(run_id: RunId, nodes: int):
    return event(ev.LeaseLimited, run_id=run_id, min_nodes=1, most_nodes=nodes, user_id="U1")


def share_of(cluster: Cluster, run_id: RunId) -> list[tuple[int, str]]:
    found = decide(cluster, RunTrains(run_id))
    return [(each.nodes, each.why) for each in found if isinstance(each, ShareNodes)]


def test_run_gives_nodes_to_one_that_waits_and_gets_them_back_when_it_has_left():
    crowded = shared_by((A, 4, 1), (B, 2, None))
    assert share_of(crowded, A) == [(2, "run run-b waits for 2 nodes")]
    for fields in ({"resizes_from": 4}, {"phase": ev.ClusterPhase.VALIDATING}):
        assert share_of(crowded.model_copy(update=fields), A) == []

    granted = walk(crowded, resized(A, 2))

    assert {lease.run_id: lease.nodes for lease in granted.open_leases} == {A: 2, B: 2}
    assert (share_of(granted, A)[0][0], share_of(granted, B)) == (2, [])
    alone = walk(granted, event(ev.LeaseReleased, event_id="b left", run_id=B))
    assert share_of(alone, A) == [(4, "nobody else waits for nodes")]


def test_limit_that_a_person_sets_counts_from_then_on():
    low = walk(shared_by((A, 4, 1)), limited(A, 3))
    assert share_of(low, A) == [(3, "that was asked for")]

    settled = walk(low, resized(A, 3))

    assert (share_of(settled, A)[0][0], settled.free_nodes) == (3, 1)


def test_lease_of_a_fixed_number_and_nodes_that_are_not_free_are_refused():
    shared = shared_by((A, 2, None), (B, 2, 1))

    for refused in (resized(A, 1), resized(B, 3), resized(C, 1), limited(C, 1)):
        with pytest.raises(IllegalTransition, match="change the nodes of run"):
            walk(shared, refused)


def test_run_pays_for_the_nodes_that_it_had_when_however_often_they_changed():
    lease = Lease(run_id=A, nodes=4, min_nodes=1, granted_at=START)
    for hour in range(1, 40):
        lease = lease.resized(1 + hour % 4, hours(hour))
    had = [4] + [1 + hour % 4 for hour in range(1, 40)]
    assert len(lease.earlier_sizes) == MAX_SIZES
    assert [lease.nodes_at(hours(at + 0.5)) for at in (37, 38, 39)] == had[37:]

    bounds = [START, *(at for at, _ in lease.sizes()), hours(40)]
    ends = pairwise(bounds)
    paid = sum((end - start).total_seconds() * lease.nodes_at(start) for start, end in ends)

    assert paid / 3600 == pytest.approx(sum(had))
    assert lease.nodes_at(hours(-1)) == 0
