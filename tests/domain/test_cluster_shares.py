"""Who pays for a cluster: every share is what it says, and together they are the bill."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase, Requester
from stationmaster.domain.cluster.leases import Lease
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.cluster.shares import cost_curve, shares
from stationmaster.domain.ids import RunId
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
