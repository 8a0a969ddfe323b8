"""Nodes of a reservation or a capacity block, and spot nodes: what is asked of AWS, and refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stationmaster.aws.reservations import RESERVATION_ACTIONS
from stationmaster.commands import Actor, resize_cluster
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.quotas import quota_of
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for_any
from stationmaster.domain.errors import BadParameter, NotPossibleNow, ResourceFailed
from stationmaster.domain.resources import ResourceKind
from stationmaster.local.aws.moto_patches.capacity_reservations import CapacityReservation
from stationmaster.preflight import examine
from stationmaster.preflight.findings import Finding, Severity
from stationmaster.preflight.subject import of_request
from stationmaster.services import Services
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.prepare_run import prepare_run
from tests.support.aws_steps import Account

P5 = "p5.48xlarge"
ON_P5: dict[str, Any] = {"recipe": "llama2-7b", "nodes": 2, "instance_type": P5}
HOURS = 48


@pytest.fixture
def at_once(account: Account) -> Account:
    """An account whose steps look at the clock of this machine, as EC2 does with a block."""
    account.late = datetime.now(UTC) - account.now()
    return account


def reserve(account: Account, *, count: int = 2, zone: str = "us-west-2b", **more: Any) -> str:
    """The id of a reservation."""
    made = account.aws.client("ec2").create_capacity_reservation(
        InstanceType=P5,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=zone,
        InstanceCount=count,
        **more,
    )
    return str(made["CapacityReservation"]["CapacityReservationId"])


def buy(account: Account, *, starts_in: timedelta = timedelta(), kind: str = P5) -> str:
    """The id of a capacity block of two machines and two days."""
    ec2 = account.aws.client("ec2")
    starts = {"StartDateRange": datetime.now(UTC) + starts_in} if starts_in else {}
    (offered,) = ec2.describe_capacity_block_offerings(
        InstanceType=kind, InstanceCount=2, CapacityDurationHours=HOURS, **starts
    )["CapacityBlockOfferings"]
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offered["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )
    return str(bought["CapacityReservation"]["CapacityReservationId"])


def standing(account: Account, reservation_id: str) -> tuple[str, int]:
    """Its state, and how many of its instances are free."""
    (found,) = account.aws.client("ec2").describe_capacity_reservations(
        CapacityReservationIds=[reservation_id]
    )["CapacityReservations"]
    return found["State"], found["AvailableInstanceCount"]


def request(account: Account, reservation_id: str, *, nodes: int = 2) -> None:
    """A run whose cluster is to have nodes of it, with its control plane."""
    found = account.services.reservations.look_up(reservation_id)
    account.request(**ON_P5 | {"nodes": nodes}, reservation=found.reservation)
    account.finish(ensure_cluster)


def preflight(account: Account) -> list[Finding]:
    """What the checks before a start say of the run that was asked for."""
    services, subject = account.services, of_request(account.run.request)
    return examine(services, subject, account=services.account, deadline_s=600)


def about_reservation(account: Account) -> Finding:
    (finding,) = [each for each in preflight(account) if each.check == "reservation"]
    return finding


def test_nodes_are_launched_in_the_reservation_in_its_zone_and_in_no_group_of_ours(
    account: Account,
):
    reservation_id = reserve(account)
    request(account, reservation_id)

    account.finish(ensure_node_group, node_group="training")

    data = account.template()
    assert data["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": reservation_id}
    }
    assert "Placement" not in data
    assert len(data["NetworkInterfaces"]) == 33  # one with addresses, and EFA on 32 cards
    assert ResourceKind.PLACEMENT_GROUP not in {
        each.kind for each in account.cluster.resources.values()
    }
    made = account.services.security_groups.describe(account.cluster_id)
    assert made is not None
    zones = account.services.account.zones_of([made.subnet_id])
    assert [*zones.values()] == ["us-west-2b"]
    assert standing(account, reservation_id) == ("active", 0)


def test_placement_group_of_a_reservation_is_used_and_never_made(account: Account):
    ec2 = account.aws.client("ec2")
    made = ec2.create_placement_group(GroupName="theirs", Strategy="cluster")
    arn = made["PlacementGroup"]["GroupArn"]
    request(account, reserve(account, PlacementGroupArn=arn))

    account.finish(ensure_node_group, node_group="training")

    assert account.template()["Placement"] == {"GroupName": "theirs"}
    assert account.services.placement_groups.left(account.cluster_id) == []


def test_reservation_that_others_took_meanwhile_fails_the_nodes_in_ec2s_words(account: Account):
    request(account, reserve(account), nodes=4)

    with pytest.raises(ResourceFailed, match="ReservationCapacityExceeded"):
        account.finish(ensure_node_group, node_group="training")


@pytest.mark.parametrize(("count", "severity"), [(1, Severity.ERROR), (2, Severity.INFO)])
def test_preflight_counts_what_is_left_of_a_reservation(account: Account, count, severity):
    found = account.services.reservations.look_up(reserve(account, count=count))
    account.ask(**ON_P5, reservation=found.reservation)

    finding = about_reservation(account)

    assert finding.severity is severity
    assert f"has {count} of {count} p5.48xlarge free" in finding.message


def test_reservation_is_looked_up_with_what_the_functions_are_granted(account: Account):
    reservation_id = reserve(account)
    account.aws.forget_calls()

    account.services.reservations.look_up(reservation_id)

    asked = {f"{service}:{operation}" for service, operation in account.aws.calls}
    assert asked == {*RESERVATION_ACTIONS, "ec2:DescribeSubnets"}


@pytest.mark.parametrize(
    ("zone", "said"),
    [
        ("us-west-2d", "nodes of this deployment can be in us-west-2a, us-west-2b"),
        ("", "does not exist in this account and region"),
    ],
)
def test_reservation_that_runs_cannot_use_is_refused_with_the_reason(
    account: Account, zone: str, said: str
):
    reservation_id = reserve(account, zone=zone) if zone else "cr-00000000000000000"

    with pytest.raises(BadParameter, match=said):
        account.services.reservations.look_up(reservation_id)


def test_reservation_that_has_ended_is_refused(account: Account, monkeypatch: pytest.MonkeyPatch):
    reservation_id = reserve(account)
    monkeypatch.setattr(CapacityReservation, "state", "cancelled")

    with pytest.raises(
        NotPossibleNow, match=f"{reservation_id} is cancelled, and only an active one"
    ):
        account.services.reservations.look_up(reservation_id)


def test_kept_cluster_of_a_reservation_grows_as_far_as_that_has_instances(account: Account):
    found = account.services.reservations.look_up(reserve(account, count=3))
    spec = spec_for_any(get_instance(P5), nodes=2, file_system_gib=1200)
    account.keep(
        ClusterPhase.PROVISIONING,
        ClusterPhase.VALIDATING,
        ClusterPhase.READY,
        spec=spec.model_copy(update={"reservation": found.reservation}),
    )
    asked = {"who": Actor(channel_id="C1", user_id="U1")}
    listed = account.settings.model_copy(update={"reservations": ("*",)})
    services = Services(listed, now=account.now)

    with pytest.raises(NotPossibleNow, match=r"has 3 of 3 p5.48xlarge free, and 4 are needed"):
        resize_cluster(services, account.cluster_id, nodes=6, **asked)

    assert account.cluster.passes == 1
    grown = resize_cluster(services, account.cluster_id, nodes=5, **asked)
    assert (grown.spec.nodes, grown.passes) == (5, 2)


def test_nodes_of_a_block_are_asked_for_as_eks_wants_it_and_not_paid_for_again(at_once: Account):
    before = at_once.services.account.vcpus_in_use(quota_of(P5))
    block_id = buy(at_once)
    request(at_once, block_id)

    at_once.finish(ensure_node_group, node_group="training")

    data = at_once.template()
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert data["InstanceType"] == P5
    assert data["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": block_id}
    }
    assert "Placement" not in data
    assert at_once.node_group()["capacityType"] == "CAPACITY_BLOCK"
    assert standing(at_once, block_id) == ("active", 0)
    nodes = at_once.cluster.resource(ResourceKind.NODE_GROUP, "training")
    assert nodes is not None
    assert nodes.price_per_hour_usd == 0
    assert at_once.cluster.spec.price_per_hour_usd < 2
    # Its machines count towards no quota.
    assert at_once.services.account.vcpus_in_use(quota_of(P5)) == before
    assert at_once.services.account.vcpus_in_use(quota_of(P5, is_spot=True)) == 0


def test_run_on_machines_that_are_sold_in_blocks_alone_is_prepared(at_once: Account):
    kind = "p5e.48xlarge"
    found = at_once.services.reservations.look_up(buy(at_once, kind=kind))
    at_once.ask(**ON_P5 | {"instance_type": kind}, reservation=found.reservation)

    assert prepare_run(at_once.services, at_once.run_id)["await_limit_s"] > 0


def test_block_before_its_start_is_found_with_all_its_instances(at_once: Account):
    block_id = buy(at_once, starts_in=timedelta(days=1))

    found = at_once.services.reservations.look_up(block_id)

    assert standing(at_once, block_id) == ("scheduled", 0)
    assert (found.available, found.total) == (2, 2)
    assert found.reservation.window is not None
    assert found.reservation.window.starts_at > at_once.now()


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (
            timedelta(hours=HOURS, minutes=1),
            "ended at .* UTC; name another block, or use capacity=on-demand",
        ),
        (timedelta(hours=HOURS, minutes=-31), "AWS takes its instances back from .* on; name"),
    ],
)
def test_block_that_is_over_is_refused_with_its_end_and_what_to_do(
    at_once: Account, late: timedelta, said: str
):
    block_id = buy(at_once)
    at_once.late += late

    with pytest.raises(NotPossibleNow, match=f"capacity block {block_id} .*{said}"):
        at_once.services.reservations.look_up(block_id)


def test_spot_nodes_are_asked_for_by_the_node_group_and_not_by_its_template(account: Account):
    account.request(**ON_P5, is_spot=True)
    account.finish(ensure_cluster)

    account.finish(ensure_node_group, node_group="training")

    assert account.node_group()["capacityType"] == "SPOT"
    assert account.node_group()["instanceTypes"] == [P5]
    assert "InstanceMarketOptions" not in account.template()
    assert account.template()["Placement"]["GroupName"].endswith(account.cluster_id)
    spot = quota_of(P5, is_spot=True)
    assert account.services.account.vcpus_in_use(spot) == 2 * 192


def test_preflight_of_spot_nodes_asks_for_the_quota_of_spot_instances(account: Account):
    account.ask(**ON_P5, is_spot=True)

    found = [each.message for each in preflight(account)]

    assert any("All P5 Spot Instance Requests" in each for each in found)
    assert not any("On-Demand P" in each for each in found)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no-capacity", "Could not launch Spot Instances. UnfulfillableCapacity"),
        ("vcpu-quota", "MaxSpotInstanceCountExceeded.*ask for more spot vCPUs"),
    ],
)
def test_spot_nodes_that_aws_does_not_have_fail_in_its_words(account: Account, fault, said):
    account.request(**ON_P5, is_spot=True)
    account.finish(ensure_cluster)
    account.aws.faults.add(fault)

    with pytest.raises(ResourceFailed, match=said):
        account.finish(ensure_node_group, node_group="training")
