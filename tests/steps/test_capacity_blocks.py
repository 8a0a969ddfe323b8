"""Nodes of a capacity block and spot nodes: what is asked of AWS, and what stays afterwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto.ec2 import ec2_backends

from stationmaster.domain.catalogue.quotas import quota_of
from stationmaster.domain.errors import NotPossibleNow, ResourceFailed
from stationmaster.domain.names import cluster_name, launch_template_name
from stationmaster.domain.resources import ResourceKind
from stationmaster.local.aws.moto_patches.capacity_reservations import reservations
from stationmaster.preflight import examine
from stationmaster.preflight.findings import Severity
from stationmaster.preflight.subject import of_request
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.prepare_run import prepare_run
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_network import release_network
from stationmaster.steps.release_node_group import release_node_group
from tests.support.aws_steps import Account

P5 = "p5.48xlarge"
HOURS = 48


@pytest.fixture
def at_once(account: Account) -> Account:
    """An account whose steps look at the clock of this machine, as EC2 does with a block."""
    account.late = datetime.now(UTC) - account.now()
    return account


def buy(
    account: Account, *, starts_in: timedelta = timedelta(), count: int = 2, kind: str = P5
) -> str:
    """The id of a capacity block of two days."""
    ec2 = account.aws.client("ec2")
    starts = {"StartDateRange": datetime.now(UTC) + starts_in} if starts_in else {}
    (offered,) = ec2.describe_capacity_block_offerings(
        InstanceType=kind, InstanceCount=count, CapacityDurationHours=HOURS, **starts
    )["CapacityBlockOfferings"]
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offered["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )
    return bought["CapacityReservation"]["CapacityReservationId"]


def standing(account: Account, block_id: str) -> tuple[str, int]:
    """The state of a block, and how many of its instances are free."""
    (found,) = account.aws.client("ec2").describe_capacity_reservations(
        CapacityReservationIds=[block_id]
    )["CapacityReservations"]
    return found["State"], found["AvailableInstanceCount"]


def ask(account: Account, block_id: str, *, nodes: int = 2) -> None:
    """A run whose cluster is to have nodes of a block, with its control plane."""
    found = account.services.reservations.look_up(block_id)
    account.request(
        recipe="llama2-7b", nodes=nodes, instance_type=P5, reservation=found.reservation
    )
    account.finish(ensure_cluster)


def template(account: Account) -> dict[str, Any]:
    (version,) = account.aws.client("ec2").describe_launch_template_versions(
        LaunchTemplateName=launch_template_name(account.cluster_id)
    )["LaunchTemplateVersions"]
    return dict(version["LaunchTemplateData"])


def group(account: Account) -> dict[str, Any]:
    found = account.aws.client("eks").describe_nodegroup(
        clusterName=cluster_name(account.cluster_id), nodegroupName="training"
    )
    return dict(found["nodegroup"])


def test_block_begins_at_the_time_that_is_told(account: Account):
    block_id = buy(account, starts_in=timedelta(hours=1))
    backend = ec2_backends[account.aws.account_id][account.aws.region]

    told = account.services.reservations.look_up(block_id).reservation.window

    assert told is not None
    assert reservations(backend)[block_id].window == (told.starts_at, told.ends_at)


def test_nodes_of_a_block_are_asked_for_as_eks_wants_it(at_once: Account):
    block_id = buy(at_once)
    ask(at_once, block_id)

    at_once.finish(ensure_node_group, node_group="training")

    data = template(at_once)
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert data["InstanceType"] == P5
    assert data["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": block_id}
    }
    assert "Placement" not in data
    assert group(at_once)["capacityType"] == "CAPACITY_BLOCK"
    assert standing(at_once, block_id) == ("active", 0)


def test_nodes_of_a_block_are_not_paid_for_a_second_time(at_once: Account):
    ask(at_once, buy(at_once))

    at_once.finish(ensure_node_group, node_group="training")

    nodes = at_once.cluster.resource(ResourceKind.NODE_GROUP, "training")
    assert nodes is not None
    assert nodes.price_per_hour_usd == 0
    assert at_once.cluster.spec.price_per_hour_usd < 2


def test_machines_of_a_block_count_towards_no_quota(at_once: Account):
    before = at_once.services.account.vcpus_in_use(quota_of(P5))
    ask(at_once, buy(at_once))
    at_once.finish(ensure_node_group, node_group="training")

    assert at_once.services.account.vcpus_in_use(quota_of(P5)) == before
    spot = quota_of(P5, is_spot=True)
    assert at_once.services.account.vcpus_in_use(spot) == 0


def test_run_on_machines_that_are_sold_in_blocks_alone_is_prepared(at_once: Account):
    found = at_once.services.reservations.look_up(buy(at_once, kind="p5e.48xlarge"))
    at_once.ask(
        recipe="llama2-7b",
        nodes=2,
        instance_type="p5e.48xlarge",
        reservation=found.reservation,
    )

    assert prepare_run(at_once.services, at_once.run_id)["await_limit_s"] > 0


def test_teardown_leaves_the_block_as_it_was(at_once: Account):
    block_id = buy(at_once)
    ask(at_once, block_id)
    at_once.finish(ensure_node_group, node_group="training")
    at_once.aws.forget_calls()

    at_once.call(begin_teardown)
    at_once.finish(release_node_group, node_group="training")
    at_once.finish(release_cluster)
    at_once.finish(release_network)

    assert standing(at_once, block_id) == ("active", 2)
    touched = {name for _, name in at_once.aws.calls if "Capacity" in name}
    assert touched == {"DescribeCapacityReservations"}  # this test's own question


def test_block_that_others_use_meanwhile_fails_the_nodes_in_ec2s_words(at_once: Account):
    ask(at_once, buy(at_once), nodes=4)

    with pytest.raises(ResourceFailed, match="ReservationCapacityExceeded"):
        at_once.finish(ensure_node_group, node_group="training")


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


@pytest.mark.parametrize(
    ("late", "severity", "said"),
    [
        (timedelta(), Severity.INFO, "has 2 of 2 p5.48xlarge free, from "),
        (timedelta(days=3), Severity.ERROR, " ended at "),
    ],
)
def test_preflight_looks_at_the_time_of_a_block(
    at_once: Account, late: timedelta, severity: Severity, said: str
):
    found = at_once.services.reservations.look_up(buy(at_once))
    at_once.ask(recipe="llama2-7b", nodes=2, instance_type=P5, reservation=found.reservation)
    at_once.late += late
    services, subject = at_once.services, of_request(at_once.run.request)

    findings = examine(services, subject, account=services.account, deadline_s=600)

    (finding,) = [each for each in findings if each.check == "reservation"]
    assert finding.severity is severity
    assert said in finding.message


def test_spot_nodes_are_asked_for_by_the_node_group_and_not_by_its_template(account: Account):
    account.request(recipe="llama2-7b", nodes=2, instance_type=P5, is_spot=True)
    account.finish(ensure_cluster)

    account.finish(ensure_node_group, node_group="training")

    assert group(account)["capacityType"] == "SPOT"
    assert group(account)["instanceTypes"] == [P5]
    assert "InstanceMarketOptions" not in template(account)
    assert "Placement" in template(account)
    spot = quota_of(P5, is_spot=True)
    assert account.services.account.vcpus_in_use(spot) == 2 * 192


def test_preflight_of_spot_nodes_asks_for_the_quota_of_spot_instances(account: Account):
    account.ask(recipe="llama2-7b", nodes=2, instance_type=P5, is_spot=True)
    services, subject = account.services, of_request(account.run.request)

    findings = examine(services, subject, account=services.account, deadline_s=600)

    assert any("All P5 Spot Instance Requests" in each.message for each in findings)
    assert not any("On-Demand P" in each.message for each in findings)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no-capacity", "Could not launch Spot Instances. UnfulfillableCapacity"),
        ("vcpu-quota", "MaxSpotInstanceCountExceeded.*ask for more spot vCPUs"),
    ],
)
def test_spot_nodes_that_aws_does_not_have_fail_in_its_words(account: Account, fault, said):
    account.request(recipe="llama2-7b", nodes=2, instance_type=P5, is_spot=True)
    account.finish(ensure_cluster)
    account.aws.faults.add(fault)

    with pytest.raises(ResourceFailed, match=said):
        account.finish(ensure_node_group, node_group="training")
