"""How a cluster's nodes are shared between runs, and who pays: together they are the bill."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase, Requester
from stationmaster.domain.cluster.leases import MAX_SIZES, Lease, fair_shares
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.cluster.shares import cost_curve, shares
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.cluster import decide
from stationmaster.domain.reactions.leasing import RunTrains, ShareNodes
from stationmaster.domain.resources import ResourceKind
from tests.support.factories import RUN_ID, START, make_cluster, walk
from tests.support.factories import make_cluster_event as event

OTHER = RunId("other")
REQUESTER = Requester(team_id="T1", channel_id="C1", user_id="U1")


def hours(count: float):
    return START + timedelta(hours=count)


def lease(run_id: RunId, nodes: int, start: float, end: float | None) -> Lease:
    until = None if end is None else hours(end)
    return Lease(run_id=run_id, nodes=nodes, granted_at=hours(start), released_at=until)


def cluster(
    *leases: Lease,
    kept: bool = False,
    ready: float | None = 1,
    drained: float | None = None,
    gone: float | None = None,
    caused: bool = True,
    price: float = 8.0,
    settled: float | None = None,
) -> Cluster:
    """Four nodes, requested at hour 0 for `price` USD an hour in all.

    From hour `settled` on they are four of six that were wanted, and cost as much less.
    """
    phases = [(ClusterPhase.REQUESTED, START)]
    phases += [(ClusterPhase.READY, hours(ready))] if ready is not None else []
    phases += [(ClusterPhase.DRAINING, hours(drained))] if drained is not None else []
    node_group = Resource(
        kind=ResourceKind.NODE_GROUP,
        name="training",
        status=ResourceStatus.ACTIVE,
        price_per_hour_usd=price,
        earlier_prices=[] if settled is None else [(hours(settled), price * 6 / 4)],
        requested_at=START,
        deleted_at=None if gone is None else hours(gone),
    )
    return make_cluster(nodes=4, leased=False).model_copy(
        update={
            "phases": phases,
            "run_id": RUN_ID if caused else None,
            "requester": REQUESTER if kept else None,
            "earlier_sizes": [] if settled is None else [(hours(settled), 6)],
            "leases": {each.run_id: each for each in leases},
            "resources": {"node group/training": node_group},
        }
    )


@pytest.mark.parametrize(
    ("made", "until", "of_run", "own"),
    [
        # Its own: for all of it, teardown included, also where it never became ready.
        (cluster(lease(RUN_ID, 4, 0, 3), drained=3, gone=4), 9, 32.0, 0.0),
        (cluster(lease(RUN_ID, 4, 0, 2), ready=None, drained=2, gone=3), 5, 24.0, 0.0),
        # A kept one: the provisioning that it caused, and its part of the nodes.
        (cluster(lease(RUN_ID, 1, 0, 2), kept=True), 2, 8.0 + 8.0 / 4, 8.0 * 3 / 4),
        (cluster(lease(RUN_ID, 4, 2, 3), kept=True, caused=False), 3, 8.0, 16.0),
    ],
)
def test_run_pays_for_what_it_caused_and_for_its_nodes(made, until, of_run, own):
    split = shares(made, hours(until))

    assert (split.runs, split.own) == ({RUN_ID: pytest.approx(of_run)}, pytest.approx(own))


def test_runs_side_by_side_pay_by_their_nodes_and_idle_time_is_the_clusters_own():
    both = cluster(lease(RUN_ID, 2, 0, 3), lease(OTHER, 1, 2, 4), kept=True, drained=6, gone=7)

    split = shares(both, hours(8))

    assert split.runs[RUN_ID] == pytest.approx(8 * 1 + 8 * 2 * 2 / 4)
    assert split.runs[OTHER] == pytest.approx(8 * 2 * 1 / 4)
    assert split.own == pytest.approx(56 - split.runs[RUN_ID] - split.runs[OTHER])


def test_cost_curve_bends_where_the_price_changes_and_ends_at_the_bill():
    made = cluster(lease(RUN_ID, 4, 1, 3), kept=True, settled=2, gone=4)

    assert cost_curve(made, hours(9)) == [
        *[(hours(0), 0), (hours(1), 12), (hours(2), 24), (hours(3), 32), (hours(4), 40)]
    ]
    assert cost_curve(made, hours(9), RUN_ID)[-1] == (hours(4), shares(made, hours(9)).runs[RUN_ID])


def test_run_that_gives_nodes_back_pays_less_from_then_on():
    given = lease(RUN_ID, 4, 0, 3).resized(1, hours(2))

    split = shares(cluster(given, lease(OTHER, 3, 2, 3), kept=True), hours(3))

    assert split.runs == {RUN_ID: pytest.approx(8 + 8 + 8 / 4), OTHER: pytest.approx(8 * 3 / 4)}
    assert split.own == pytest.approx(0)


def test_resize_changes_the_price_and_the_parts_from_then_on():
    grown = cluster(lease(RUN_ID, 4, 0, None), kept=True)
    node_group = grown.resources["node group/training"].model_copy(
        update={"price_per_hour_usd": 16.0, "earlier_prices": [(hours(2), 8.0)]}
    )
    grown = grown.model_copy(
        update={
            "spec": grown.spec.model_copy(update={"nodes": 8}),
            "earlier_sizes": [(hours(2), 4)],
            "resources": {"node group/training": node_group},
        }
    )

    split = shares(grown, hours(3))

    assert split.total == pytest.approx(8 + 8 + 16)
    assert split.runs[RUN_ID] == pytest.approx(8 + 8 + 16 * 4 / 8)


moments = st.integers(0, 12).map(float)


@given(
    spans=st.lists(st.tuples(moments, moments, st.integers(1, 2)), max_size=2),
    kept=st.booleans(),
    caused=st.booleans(),
    ready=st.none() | moments,
    drained=st.none() | moments,
    gone=st.none() | moments,
    settled=st.none() | moments,
    now=moments,
)
def test_shares_are_the_bill_whatever_happened(
    spans, kept, caused, ready, drained, gone, settled, now
):
    leases = [
        lease(RunId(f"run-{index}"), nodes, start, start + length)
        for index, (start, length, nodes) in enumerate(spans)
    ]
    any_cluster = cluster(
        *leases, kept=kept, caused=caused, ready=ready, drained=drained, gone=gone, settled=settled
    )

    split = shares(any_cluster, hours(now))

    assert split.total == pytest.approx(any_cluster.cost_usd(hours(now)))
    assert split.own >= -1e-9
    assert all(part >= 0 for part in split.runs.values())


range_events = st.lists(
    st.tuples(
        st.sampled_from(["wants", "leaves"]),
        st.integers(0, 3),
        st.integers(1, 4),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=10,
)


@given(steps=range_events, came=st.integers(2, 4), settled_after=st.integers(0, 9))
def test_leases_of_ranges_never_exceed_the_nodes_and_share_the_bill(steps, came, settled_after):
    """The cluster is made for two to four nodes; whoever comes asks for ranges of its nodes."""
    now = START
    shared = cluster(kept=True, ready=None)
    spec = shared.spec.model_copy(update={"min_nodes": 2})
    shared = shared.model_copy(update={"spec": spec, "keep_until": hours(99)})
    for number, (what, run, least, more, later) in enumerate(steps):
        now += timedelta(hours=later)
        run_id = RUN_ID if run == 0 else RunId(f"run-{run}")
        happened: list[tuple[type, dict[str, object]]] = []
        if number == settled_after:
            happened += [(ev.SizeSettled, {"nodes": came})]
            happened += [(ev.ClusterPhaseChanged, {"phase": ClusterPhase.PROVISIONING})]
            happened += [(ev.ClusterPhaseChanged, {"phase": ClusterPhase.READY})]
        if what == "wants" and least <= shared.spec.nodes and least <= came:
            happened += [
                (ev.LeaseRequested, {"run_id": run_id, "nodes": least + more, "min_nodes": least})
            ]
        elif run_id in shared.waiting_runs:
            happened += [(ev.LeaseReleased, {"run_id": run_id})]
        for index, (kind, values) in enumerate(happened):
            shared = walk(shared, event(kind, event_id=f"{number}-{index}", at=now, **values))
        held = sum(lease.nodes for lease in shared.open_leases)
        assert held <= shared.spec.nodes
        split = shares(shared, now)
        assert split.total == pytest.approx(shared.cost_usd(now))
        assert split.own >= -1e-9


A, B, C = (RunId(f"run-{name}") for name in "abc")


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
