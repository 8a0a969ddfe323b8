"""Nodes of a capacity reservation: what is asked of AWS, and what stays when the cluster goes."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.aws.reservations import RESERVATION_ACTIONS
from stationmaster.commands import resize_cluster
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import Reservation, spec_for_any
from stationmaster.domain.errors import BadParameter, NotPossibleNow, ResourceFailed
from stationmaster.domain.names import launch_template_name
from stationmaster.domain.resources import ResourceKind
from stationmaster.preflight import examine
from stationmaster.preflight.findings import Severity
from stationmaster.preflight.subject import of_request
from stationmaster.services import Services
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_network import release_network
from stationmaster.steps.release_node_group import release_node_group
from tests.support.aws_steps import Account

P5 = "p5.48xlarge"


def reserve(account: Account, *, count: int = 2, zone: str = "us-west-2b", **more: Any) -> str:
    made = account.aws.client("ec2").create_capacity_reservation(
        InstanceType=P5,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=zone,
        InstanceCount=count,
        **more,
    )
    return made["CapacityReservation"]["CapacityReservationId"]


def standing(account: Account, reservation_id: str) -> tuple[str, int]:
    """The state of a reservation, and how many of its instances are free."""
    (found,) = account.aws.client("ec2").describe_capacity_reservations(
        CapacityReservationIds=[reservation_id]
    )["CapacityReservations"]
    return found["State"], found["AvailableInstanceCount"]


def request(account: Account, reservation_id: str, *, nodes: int = 2) -> Reservation:
    """A run whose cluster is to have nodes of a reservation."""
    reservation = account.services.reservations.look_up(reservation_id).reservation
    account.request(recipe="llama2-7b", nodes=nodes, instance_type=P5, reservation=reservation)
    account.finish(ensure_cluster)
    return reservation


def template(account: Account) -> dict[str, Any]:
    (version,) = account.aws.client("ec2").describe_launch_template_versions(
        LaunchTemplateName=launch_template_name(account.cluster_id)
    )["LaunchTemplateVersions"]
    return dict(version["LaunchTemplateData"])


def test_nodes_are_launched_in_the_reservation_in_its_zone_and_in_no_group_of_ours(
    account: Account,
):
    reservation_id = reserve(account)
    request(account, reservation_id)

    account.finish(ensure_node_group, node_group="training")

    data = template(account)
    assert data["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": reservation_id}
    }
    assert "Placement" not in data
    assert len(data["NetworkInterfaces"]) == 33  # one with addresses, and EFA on 32 cards
    assert ResourceKind.PLACEMENT_GROUP not in {
        each.kind for each in account.cluster.resources.values()
    }
    group = account.services.security_groups.describe(account.cluster_id)
    assert group is not None
    zones = account.services.account.zones_of([group.subnet_id])
    assert [*zones.values()] == ["us-west-2b"]
    assert standing(account, reservation_id) == ("active", 0)


def test_nodes_without_a_reservation_are_in_a_group_of_their_own(account: Account):
    account.request(recipe="llama2-7b", nodes=2, instance_type=P5)
    account.finish(ensure_cluster)

    account.finish(ensure_node_group, node_group="training")

    data = template(account)
    assert "CapacityReservationSpecification" not in data
    assert data["Placement"]["GroupName"].endswith(account.cluster_id)


def test_placement_group_of_a_reservation_is_used_and_never_made(account: Account):
    ec2 = account.aws.client("ec2")
    ec2.create_placement_group(GroupName="theirs", Strategy="cluster")
    arn = ec2.describe_placement_groups(GroupNames=["theirs"])["PlacementGroups"][0]["GroupArn"]
    request(account, reserve(account, PlacementGroupArn=arn))

    account.finish(ensure_node_group, node_group="training")

    assert template(account)["Placement"] == {"GroupName": "theirs"}
    assert account.services.placement_groups.left(account.cluster_id) == []


def test_teardown_leaves_the_reservation_as_it_was(account: Account):
    reservation_id = reserve(account)
    request(account, reservation_id)
    account.finish(ensure_node_group, node_group="training")
    account.aws.forget_calls()

    account.call(begin_teardown)
    account.finish(release_node_group, node_group="training")
    account.finish(release_cluster)
    account.finish(release_network)

    assert standing(account, reservation_id) == ("active", 2)
    touched = {name for _, name in account.aws.calls if "CapacityReservation" in name}
    assert touched == {"DescribeCapacityReservations"}  # this test's own question


def test_reservation_that_others_took_meanwhile_fails_the_nodes_in_ec2s_words(account: Account):
    reservation_id = reserve(account)
    request(account, reservation_id, nodes=4)

    with pytest.raises(ResourceFailed, match="ReservationCapacityExceeded"):
        account.finish(ensure_node_group, node_group="training")


@pytest.mark.parametrize(
    ("count", "severity"), [(1, Severity.ERROR), (2, Severity.INFO), (3, Severity.INFO)]
)
def test_preflight_counts_what_is_left_of_a_reservation(account: Account, count, severity):
    found = account.services.reservations.look_up(reserve(account, count=count))
    account.ask(recipe="llama2-7b", nodes=2, instance_type=P5, reservation=found.reservation)
    services, subject = account.services, of_request(account.run.request)

    findings = examine(services, subject, account=services.account, deadline_s=600)

    (finding,) = [each for each in findings if each.check == "reservation"]
    assert finding.severity is severity
    assert f"has {count} of {count} p5.48xlarge free" in finding.message


def test_preflight_finds_a_reservation_that_was_cancelled(account: Account):
    reservation_id = reserve(account)
    found = account.services.reservations.look_up(reservation_id)
    account.ask(recipe="llama2-7b", nodes=2, instance_type=P5, reservation=found.reservation)
    account.aws.client("ec2").cancel_capacity_reservation(CapacityReservationId=reservation_id)
    services, subject = account.services, of_request(account.run.request)

    findings = examine(services, subject, account=services.account, deadline_s=600)

    (finding,) = [each for each in findings if each.check == "reservation"]
    assert finding.severity is Severity.ERROR
    assert f"{reservation_id} is cancelled, and only an active one" in finding.message


def test_reservation_is_looked_up_with_what_the_functions_are_granted(account: Account):
    reservation_id = reserve(account)
    account.aws.forget_calls()

    account.services.reservations.look_up(reservation_id)

    asked = {f"{service}:{operation}" for service, operation in account.aws.calls}
    assert asked == {*RESERVATION_ACTIONS, "ec2:DescribeSubnets"}


@pytest.mark.parametrize(
    ("zone", "error", "said"),
    [
        ("us-west-2d", BadParameter, "nodes of this deployment can be in us-west-2a, us-west-2b"),
        ("", BadParameter, "does not exist in this account and region"),
    ],
)
def test_reservation_that_runs_cannot_use_is_refused_with_the_reason(
    account: Account, zone: str, error: type[Exception], said: str
):
    reservation_id = reserve(account, zone=zone) if zone else "cr-00000000000000000"

    with pytest.raises(error, match=said):
        account.services.reservations.look_up(reservation_id)


def test_reservation_that_has_ended_is_refused(account: Account):
    reservation_id = reserve(account)
    account.aws.client("ec2").cancel_capacity_reservation(CapacityReservationId=reservation_id)

    with pytest.raises(NotPossibleNow, match="is cancelled"):
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
    asked = {"channel_id": "C1", "user_id": "U1"}
    listed = account.settings.model_copy(update={"reservations": ("*",)})
    services = Services(listed, now=account.now)

    with pytest.raises(NotPossibleNow, match=r"has 3 of 3 p5.48xlarge free, and 4 are needed"):
        resize_cluster(services, account.cluster_id, nodes=6, **asked)

    assert account.cluster.passes == 1
    grown = resize_cluster(services, account.cluster_id, nodes=5, **asked)
    assert (grown.spec.nodes, grown.passes) == (5, 2)
