"""The life of a cluster: every event on every phase applies or raises, and the fence holds."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.aggregates import CLUSTER
from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.changes import apply
from stationmaster.domain.cluster.events import ClusterPhase, Requester
from stationmaster.domain.cluster.fitting import why_unfit
from stationmaster.domain.cluster.replacing import (
    checked_since,
    open_replacements,
    why_not_replaced,
)
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.cluster.spec import Reservation
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import run_event_id
from tests.support.factories import RUN_ID, START, make_cluster, walk
from tests.support.factories import make_cluster_event as event

OTHER_RUN = "tiny-llama-ffffffff"
GOING_AWAY = (ClusterPhase.DRAINING, ClusterPhase.RELEASING, ClusterPhase.RELEASED)


ANY_EVENT = st.sampled_from(
    [
        *(event(ev.ClusterPhaseChanged, phase=phase) for phase in ClusterPhase),
        event(ev.LeaseRequested, run_id=RUN_ID, nodes=2, keep_s=60),
        event(ev.LeaseRequested, run_id=OTHER_RUN, nodes=1),
        event(ev.KeepExtended, keep_until=START, user_id="U1"),
        event(ev.KeepEnding, keep_until=START),
        event(ev.DeletionRequested, user_id="U1"),
        event(ev.PassBegan, nodes=3, user_id="U1"),
        event(ev.LeaseGranted, run_id=RUN_ID, nodes=2),
        event(ev.LeaseGranted, run_id=OTHER_RUN, nodes=1),
        event(ev.LeaseReleased, run_id=RUN_ID),
        event(ev.LeaseReleased, run_id=OTHER_RUN),
        event(ev.ResourceRequested, kind=ResourceKind.CLUSTER, name="c", price_per_hour_usd=1.0),
        event(ev.ResourceCreated, kind=ResourceKind.CLUSTER, name="c"),
        event(ev.ResourceDeleted, kind=ResourceKind.CLUSTER, name="c"),
        event(ev.PluginReady, plugin="relay"),
        event(ev.CheckFinished, check="nodes", passed=True, detail="2 of 2"),
        event(ev.TeardownStarted),
        event(ev.TeardownFailed, reason="busy", left=["cluster c"]),
        event(ev.TeardownCompleted, cost_usd=1.0),
    ]
)


NEEDED = make_cluster(nodes=2).spec


def test_apply_along_the_happy_path_ends_released_with_its_cost():
    cluster = make_cluster()
    for phase in (ClusterPhase.PROVISIONING, ClusterPhase.VALIDATING, ClusterPhase.READY):
        cluster = apply(cluster, event(ev.ClusterPhaseChanged, phase=phase))

    cluster = walk(
        cluster,
        event(ev.LeaseReleased, run_id=RUN_ID),
        event(ev.TeardownStarted),
        event(ev.TeardownCompleted, cost_usd=1.5),
    )

    assert [phase for phase, _ in cluster.phases] == [
        each for each in ClusterPhase if each is not ClusterPhase.FAILED
    ]
    assert (cluster.teardown, cluster.cost_usd(START)) == (TeardownStatus.COMPLETED, 1.5)
    assert not cluster.is_open


@given(events=st.lists(ANY_EVENT, max_size=12))
def test_any_order_of_events_applies_or_raises_and_keeps_the_fence(events):
    cluster = make_cluster()
    for each in events:
        before = cluster
        try:
            cluster = walk(cluster, each)
        except IllegalTransition:
            continue
        # What is released stays so; what drains never serves again.
        assert not (before.is_going_away and not cluster.is_going_away)
        # Nothing is asked for, and nobody comes, once it goes away.
        if before.is_going_away or before.phase is ClusterPhase.FAILED:
            assert not isinstance(each, ev.ResourceRequested | ev.LeaseGranted)
        # Never more leases than nodes, and never left by the last run without draining.
        assert sum(lease.nodes for lease in cluster.open_leases) <= cluster.spec.nodes
        if isinstance(each, ev.LeaseReleased) and not cluster.is_wanted:
            assert cluster.is_going_away
    state = cluster.model_dump_json()
    assert CLUSTER.state.model_validate_json(state) == cluster


@pytest.mark.parametrize("phase", [*GOING_AWAY, ClusterPhase.FAILED])
def test_resource_of_a_cluster_that_goes_away_cannot_be_asked_for(phase):
    asked = event(ev.ResourceRequested, kind=ResourceKind.FILE_SYSTEM, name="fs")

    with pytest.raises(IllegalTransition, match=f"is {phase.value} and cannot get file system fs"):
        apply(make_cluster(phase), asked)


@pytest.mark.parametrize(
    ("phase", "refused", "why"),
    [
        (
            ClusterPhase.REQUESTED,
            event(ev.LeaseGranted, run_id=OTHER_RUN, nodes=1),
            f"0 of 2 nodes free, run {OTHER_RUN} wants 1",
        ),
        (ClusterPhase.READY, event(ev.TeardownStarted), "is ready and cannot be torn down"),
        (ClusterPhase.DRAINING, event(ev.TeardownCompleted, cost_usd=1.0), "be released"),
        (
            ClusterPhase.REQUESTED,
            event(ev.TeardownStarted, cluster_id="other-12345678"),
            "is not of",
        ),
    ],
)
def test_event_that_cannot_happen_to_the_cluster_is_refused(phase, refused, why):
    with pytest.raises(IllegalTransition, match=why):
        apply(make_cluster(phase), refused)


def test_kind_of_jobs_and_a_resource_that_lands_late_are_kept():
    late = event(ev.ResourceCreated, kind=ResourceKind.FILE_SYSTEM, name="fs", resource_id="fs-1")
    kind = event(ev.JobKindChosen, kind=JobKind.TRAIN_JOB)

    cluster = walk(make_cluster(ClusterPhase.DRAINING), late, kind)

    assert (cluster.billable_left, cluster.job_kind) == (["file system fs"], JobKind.TRAIN_JOB)


def of_group(kind: type, *, at: float = 0, **fields: object):
    about = {"kind": ResourceKind.NODE_GROUP, "name": "training", **fields}
    return event(kind, at=START + timedelta(hours=at), **about)


ASKED = of_group(ev.ResourceRequested, price_per_hour_usd=2.0)
GONE = of_group(ev.ResourceDeleted, at=1)
SEEN, REFUSED = of_group(ev.ResourceSeen), of_group(ev.ResourceRefused)
AGAIN = of_group(ev.ResourceRequested, price_per_hour_usd=5.0, anew=True, at=3)


@pytest.mark.parametrize(
    ("events", "usd_after_4_hours", "is_left"),
    [
        ([ASKED, of_group(ev.ResourceCreated)], 8.0, True),
        ([ASKED, of_group(ev.ResourceCreated), GONE], 2.0, False),
        ([ASKED, REFUSED], 0.0, False),
        ([ASKED, REFUSED, AGAIN], 5.0, True),
        ([ASKED, SEEN, GONE, AGAIN], 7.0, True),
    ],
)
def test_resource_is_billed_from_request_until_seen_gone_and_never_if_refused(
    events, usd_after_4_hours, is_left
):
    cluster = walk(make_cluster(), *events)

    assert cluster.cost_usd(START + timedelta(hours=4)) == pytest.approx(usd_after_4_hours)
    assert cluster.billable_left == (["node group training"] if is_left else [])
    resource = cluster.resource(ResourceKind.NODE_GROUP, "training")
    assert (resource.status is ResourceStatus.DELETED) == (events[-1] is GONE)


ZONE_LEFT = event(
    ev.ZoneGivenUp,
    zone="us-west-2a",
    left_subnet_id="subnet-1",
    next_zone="us-west-2b",
    subnet_id="subnet-2",
    instance_type="p5.48xlarge",
    nodes=2,
)


def test_zone_is_given_up_only_before_a_cluster_was_used():
    cluster = walk(
        make_cluster(), event(ev.ClusterPhaseChanged, phase=ClusterPhase.PROVISIONING), ZONE_LEFT
    )
    ready = walk(
        cluster,
        event(ev.ClusterPhaseChanged, phase=ClusterPhase.READY),
        event(ev.PassBegan, nodes=cluster.spec.nodes, user_id="U1"),
    )

    assert cluster.subnet_id == "subnet-2"
    assert [each.zone for each in cluster.given_up_zones] == ["us-west-2a"]
    with pytest.raises(IllegalTransition, match="because it has been used"):
        apply(ready, ZONE_LEFT)


def replacing(instance_id="i-1", **fields):
    about = {"node": "n-1", "instance_id": instance_id, "check": "gpus", "reason": "r", "number": 1}
    return event(ev.NodeReplacementBegan, **about | fields)


def test_replaced_node_voids_every_check_and_closes_its_replacement():
    passed = event(ev.CheckFinished, check="nodes", passed=True, detail="2 of 2")
    later = START + timedelta(minutes=9)
    begun = walk(make_cluster(ClusterPhase.VALIDATING), passed, replacing())
    over = walk(begun, passed, event(ev.NodeReplaced, node="n-1", instance_id="i-1", at=later))

    assert (begun.checks, over.checks) == ([], [])
    assert [each.instance_id for each in open_replacements(begun)] == ["i-1"]
    assert open_replacements(over) == []
    assert checked_since(over) == later


def test_replacement_is_refused_past_its_limit_and_outside_of_checks():
    begun = walk(make_cluster(ClusterPhase.VALIDATING), replacing(), replacing("i-2"))

    with pytest.raises(IllegalTransition, match="2 were replaced"):
        apply(begun, replacing("i-3"))
    for phase in (ClusterPhase.READY, ClusterPhase.FAILED, ClusterPhase.DRAINING):
        with pytest.raises(IllegalTransition, match="cannot get another node for n-1"):
            apply(make_cluster(phase), replacing())


RESERVED = Reservation(reservation_id="cr-1", zone="us-west-2a")


@pytest.mark.parametrize(
    ("num_bad", "num_nodes", "earlier", "change", "why_not"),
    [
        (1, 2, 0, {}, ""),
        (2, 4, 0, {}, ""),
        (1, 4, 1, {}, ""),
        (2, 2, 0, {}, "2 of 2 nodes failed, so none is replaced"),
        (2, 3, 0, {}, "2 of 3 nodes failed, so none is replaced"),
        (1, 1, 0, {}, "the only node of a cluster is not replaced"),
        (3, 8, 0, {}, "3 nodes more to replace would be over the limit of 2"),
        (1, 8, 2, {}, "1 node more to replace after 2 would be over the limit of 2"),
        (1, 2, 0, {"eks_name": "theirs"}, "nodes of EKS cluster theirs belong to others"),
        (1, 2, 0, {"eks_name": "theirs", "hyperpod_vcpus": 4}, ""),
        (1, 2, 0, {"reservation": RESERVED}, "the next instance of cr-1 would come in its place"),
    ],
)
def test_nodes_are_replaced_where_another_machine_may_help(
    num_bad, num_nodes, earlier, change, why_not
):
    cluster = make_cluster(ClusterPhase.VALIDATING)
    cluster = walk(cluster, *(replacing(f"i-{number}") for number in range(earlier)))
    cluster = cluster.model_copy(update={"spec": cluster.spec.model_copy(update=change)})

    said = why_not_replaced(cluster, num_bad=num_bad, num_nodes=num_nodes)

    assert why_not in said
    assert bool(why_not) == bool(said)


def test_teardown_failed_then_completed_ends_with_nothing_left():
    cluster = make_cluster(ClusterPhase.DRAINING)
    cluster = walk(
        cluster,
        event(ev.TeardownStarted),
        event(ev.TeardownFailed, reason="busy", left=["cluster x"]),
    )
    assert (cluster.teardown, cluster.left_behind) == (TeardownStatus.FAILED, ["cluster x"])

    again = START + timedelta(minutes=15)
    cluster = apply(cluster, event(ev.TeardownStarted, at=again))
    assert cluster.teardown_started_at == again

    cluster = apply(cluster, event(ev.TeardownCompleted, cost_usd=1.5))

    assert (cluster.teardown, cluster.left_behind, cluster.final_cost_usd) == (
        TeardownStatus.COMPLETED,
        [],
        1.5,
    )


def test_cluster_named_after_its_run_shares_no_event_id_with_it() -> None:
    # Threads and listeners tell events of both apart by their ids alone.
    assert ev.cluster_event_id(ClusterId(RUN_ID), "phase", "provisioning") != run_event_id(
        RUN_ID, "phase", "provisioning"
    )


def kept(phase: ClusterPhase = ClusterPhase.READY, **values: object) -> Cluster:
    requester = Requester(team_id="T1", channel_id="C1", user_id="U1")
    cluster = make_cluster(phase, nodes=4, leased=False)
    return cluster.model_copy(update={"name": "lab", "requester": requester} | values)


@pytest.mark.parametrize(
    "phase", [ClusterPhase.REQUESTED, ClusterPhase.PROVISIONING, ClusterPhase.READY]
)
def test_cluster_of_enough_nodes_of_the_type_takes_a_run_now_or_later(phase):
    assert why_unfit(kept(phase), NEEDED) == ""
    assert why_unfit(kept(phase), NEEDED.model_copy(update={"nodes": 4})) == ""


@pytest.mark.parametrize(
    ("cluster", "change", "sentence"),
    [
        (kept(requester=None), {}, "was made for one run and goes with it"),
        (kept(ClusterPhase.RELEASED), {}, "is released and takes no more runs"),
        (kept(ClusterPhase.FAILED, reason="no capacity"), {}, "no more runs: no capacity"),
        (kept(), {"nodes": 5}, "has 4 training nodes, the run wants 5"),
        (kept(), {"instance_type": "p4d.24xlarge"}, "has m5.2xlarge nodes, the run wants p4d.24x"),
        (kept(), {"num_gpus": 8}, "offers 0 GPUs a node, the run needs 8"),
        (kept(), {"num_efa": 4}, "offers 0 EFA interfaces a node, the run needs 4"),
    ],
)
def test_refusal_names_the_cluster_and_both_figures(cluster, change, sentence):
    said = why_unfit(cluster, NEEDED.model_copy(update=change))

    assert said.startswith("cluster ")
    assert sentence in said
