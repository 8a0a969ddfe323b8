"""Zones in turn: where AWS has no instances, nodes and file system are made in the next zone."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.errors import ResourceFailed, StepTimedOut, ZoneChanged
from stationmaster.domain.names import TAG_CLUSTER_ID
from stationmaster.domain.resources import ResourceKind
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.ensure_node_group import ensure_node_group
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account

FIRST_IS_FULL = "no-capacity-in-first-zone"
NO_STORAGE = "no-storage-in-first-zone"
SILENT = "launches-fail-silently"
P4D = {"recipe": "llama2-7b", "instance_type": "p4d.24xlarge"}


def begin(account: Account, fault: str, **request: Any) -> None:
    """A cluster whose control plane is there, in an account that lacks instances."""
    account.aws.faults.add(fault)
    account.request(**request)
    account.finish(ensure_cluster)


def zones(account: Account) -> dict[str, str]:
    """The zone of each subnet."""
    return account.services.subnets.zones()


def node_zones(account: Account) -> set[str]:
    found = account.services.node_groups.describe(account.cluster_id, "training")
    assert found is not None
    return {zones(account)[each] for each in found.subnet_ids}


def file_systems(account: Account) -> list[str]:
    """The zone of each file system of the cluster."""
    listed = account.services.file_systems.list_tagged(account.cluster_id)
    return [zones(account)[each.subnet_id] for each in listed]


def statuses(account: Account, kind: ResourceKind) -> list[ResourceStatus]:
    return [each.status for each in account.cluster.resources.values() if each.kind is kind]


def training_price(account: Account) -> float:
    """USD an hour that is counted of the training nodes."""
    group = account.cluster.resource(ResourceKind.NODE_GROUP, "training")
    assert group is not None
    return group.price_per_hour_usd


def boot(account: Account, instance_type: Any) -> None:
    """Launch one node of those that were asked for."""
    tags = [{"Key": TAG_CLUSTER_ID, "Value": account.cluster_id}]
    account.aws.client("ec2").run_instances(
        MinCount=1,
        MaxCount=1,
        InstanceType=instance_type,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )


def lose_zone(account: Account) -> None:
    """Call for the training nodes until their first zone is given up."""

    def is_given_up() -> bool:
        account.call(ensure_node_group, node_group="training")
        return bool(account.cluster.given_up_zones)

    until(is_given_up)


def moved_to_second_zone(account: Account) -> Any:
    """Nodes and file system are there, and nowhere else; the event that says so."""
    assert node_zones(account) == {"us-west-2b"}
    assert file_systems(account) == ["us-west-2b"]
    (given_up,) = account.events("cluster.zone_given_up")
    assert (given_up.zone, given_up.next_zone) == ("us-west-2a", "us-west-2b")
    return given_up


@pytest.mark.parametrize("says", ["eks", "auto-scaling-group"])
def test_nodes_come_in_the_next_zone_and_the_file_system_is_made_there(account: Account, says: str):
    if says == "auto-scaling-group":
        account.aws.faults.add(SILENT)
    begin(account, FIRST_IS_FULL, **P4D)

    account.finish(ensure_node_group, node_group="training")
    account.finish(ensure_file_system)

    given_up = moved_to_second_zone(account)
    assert (given_up.nodes, given_up.instance_type) == (2, "p4d.24xlarge")
    assert "InsufficientInstanceCapacity" in given_up.reason


def test_file_system_that_was_there_first_follows_the_nodes(account: Account):
    begin(account, FIRST_IS_FULL)
    account.call(ensure_file_system)
    until(lambda: _is_available(account))
    assert not account.call(ensure_file_system)  # the nodes may still change their zone
    lose_zone(account)

    account.finish(ensure_node_group, node_group="training")
    account.finish(ensure_file_system)

    assert file_systems(account) == ["us-west-2b"]
    assert statuses(account, ResourceKind.FILE_SYSTEM) == ["deleted", "active"]
    assert account.call(ensure_file_system)


def _is_available(account: Account) -> bool:
    found = account.services.file_systems.describe(account.cluster_id)
    return found is not None and found.lifecycle == "AVAILABLE"


def test_file_system_asked_for_and_never_listed_is_waited_for_as_long_as_it_may_appear(
    account: Account,
):
    begin(account, FIRST_IS_FULL)
    account.aws.inject("fsx", "CreateFileSystem", "ServiceUnavailable", times=99)
    with pytest.raises(Exception, match="ServiceUnavailable"):
        account.call(ensure_file_system)  # recorded, and never made
    account.aws.clear_injected()
    lose_zone(account)
    account.finish(ensure_node_group, node_group="training")
    account.call(ensure_file_system)
    until(lambda: _is_available(account))

    early = account.call(ensure_file_system)
    account.late += timedelta(seconds=account.settings.creation_grace_s)

    assert not early
    assert account.call(ensure_file_system)
    assert sorted(statuses(account, ResourceKind.FILE_SYSTEM)) == ["active", "deleted"]


def test_where_the_zone_is_fixed_nodes_are_waited_for_with_a_sentence(account: Account):
    account.aws.faults.add(SILENT)
    begin(account, "no-capacity", **P4D)
    account.set(subnet_ids=account.settings.subnet_ids[:1])
    call = partial(account.call, ensure_node_group, node_group="training")
    with account.aws.lifecycles_held():
        assert not call(), "made"
        assert not call(), "nothing has failed yet"
        of_all = training_price(account)
    until(lambda: call() or account.events("cluster.preflight_warned"))
    assert training_price(account) == 0.0
    boot(account, "p4d.24xlarge")
    call()
    one = training_price(account)
    account.pass_time()
    with pytest.raises(StepTimedOut, match="or with another instance type or fewer nodes"):
        call()

    (warned,) = account.events("cluster.preflight_warned")
    for part in ("no 2 x p4d.24xlarge free", "until 2026-11-20 19:", "an hour meanwhile"):
        assert part in warned.findings[0]
    each = get_instance("p4d.24xlarge").price_per_hour_usd
    assert each is not None
    assert (of_all, one) == (pytest.approx(2 * each), pytest.approx(each))


def test_nodes_that_come_late_in_a_fixed_zone_are_used(account: Account):
    begin(account, "capacity-late")
    account.set(subnet_ids=account.settings.subnet_ids[:1])
    account.finish(ensure_node_group, node_group="training")

    name = account.node_group()["resources"]["autoScalingGroups"][0]["name"]
    client = account.aws.client("autoscaling")
    tried = client.describe_scaling_activities(AutoScalingGroupName=name)["Activities"]
    assert {each["StatusCode"] for each in tried} == {"Failed", "Successful"}
    assert training_price(account) == pytest.approx(0.768)


def test_when_no_zone_has_instances_the_sentence_names_zones_and_remedies(account: Account):
    begin(account, "no-capacity", **P4D)

    with pytest.raises(ResourceFailed) as failed:
        account.finish(ensure_node_group, node_group="training")

    said = str(failed.value)
    tried = [event.zone for event in account.events("cluster.zone_given_up")]
    assert said.startswith(
        "AWS has no 2 x p4d.24xlarge free in us-west-2a, us-west-2b, us-west-2c: "
    )
    assert tried == ["us-west-2a", "us-west-2b"]
    assert "another instance type or fewer nodes, or reserve instances" in said
    assert "capacity=odcr:ID" in said


def test_nodes_that_are_there_follow_a_file_system_that_has_no_room(account: Account):
    begin(account, NO_STORAGE)
    account.finish(ensure_node_group, node_group="training")
    with pytest.raises(ZoneChanged, match="insufficient storage capacity"):
        account.finish(ensure_file_system)
    account.call(ensure_file_system)
    until(lambda: _is_available(account))
    assert not account.call(ensure_file_system)  # the nodes are still in the zone given up

    account.finish(ensure_node_group, node_group="training")
    account.finish(ensure_file_system)

    given_up = moved_to_second_zone(account)
    assert given_up.lacking is ResourceKind.FILE_SYSTEM
    assert sorted(statuses(account, ResourceKind.FILE_SYSTEM)) == ["active", "deleted"]


def _has_failed(account: Account) -> bool:
    found = account.services.file_systems.describe(account.cluster_id)
    return found is not None and found.lifecycle == "FAILED"


def test_nodes_that_do_not_follow_the_file_system_are_said_after_the_limit(account: Account):
    begin(account, NO_STORAGE)
    account.finish(ensure_node_group, node_group="training")
    with pytest.raises(ZoneChanged):
        account.finish(ensure_file_system)
    account.call(ensure_file_system)
    until(lambda: _is_available(account))
    until(lambda: len(file_systems(account)) == 1 or account.call(ensure_file_system))

    account.pass_time()

    with pytest.raises(StepTimedOut, match="nodes have not come to the zone of their file system"):
        account.finish(ensure_file_system)


def test_sentence_says_what_each_zone_lacks(account: Account):
    begin(account, NO_STORAGE, **P4D)
    account.call(ensure_file_system)
    until(lambda: _has_failed(account))
    account.call(ensure_file_system)
    account.aws.faults.add("no-capacity")

    with pytest.raises(
        ResourceFailed,
        match=r"^AWS has no 2 x p4d.24xlarge free in us-west-2b, us-west-2c and FSx has no room "
        r"for a file system in us-west-2a: no other zone of this deployment offers p4d.24xlarge; ",
    ):
        account.finish(ensure_node_group, node_group="training")


def test_quota_ends_the_wait_though_eks_says_nothing(account: Account):
    account.aws.faults.add(SILENT)
    begin(account, "vcpu-quota", **P4D)

    with pytest.raises(ResourceFailed, match=r"VcpuLimitExceeded.*; ask for more vCPUs of these"):
        account.finish(ensure_node_group, node_group="training")

    found = account.services.node_groups.describe(account.cluster_id, "training")
    assert found is not None
    assert (found.status, found.failure) == ("CREATING", "")


def test_launch_that_fails_for_another_reason_is_waited_for_and_quoted(account: Account):
    begin(account, SILENT, **P4D)
    account.call(ensure_node_group, node_group="training")
    account.aws.finish_lifecycles()

    waited = not account.call(ensure_node_group, node_group="training")
    account.late += timedelta(seconds=account.settings.provision_timeout_s + 1)

    assert waited
    with pytest.raises(
        StepTimedOut,
        match=r"training is still CREATING after .*: Could not launch .* Client.InternalError: .*"
        r"failed; repair that in the AWS account, then try again$",
    ):
        account.call(ensure_node_group, node_group="training")


def test_zone_that_does_not_offer_the_type_is_not_tried(
    account: Account, monkeypatch: pytest.MonkeyPatch
):
    begin(account, FIRST_IS_FULL)
    offering = {"us-west-2a", "us-west-2c"}
    monkeypatch.setattr(account.services.subnets, "zones_offering", lambda _type: offering)

    account.finish(ensure_node_group, node_group="training")

    assert node_zones(account) == {"us-west-2c"}


def test_node_group_that_does_not_go_is_said_after_the_limit(account: Account):
    begin(account, FIRST_IS_FULL)
    lose_zone(account)
    account.aws.inject("eks", "DeleteNodegroup", "ResourceInUseException", times=9)

    account.pass_time()

    with pytest.raises(StepTimedOut, match="of zone us-west-2a, which was given up, is still"):
        account.call(ensure_node_group, node_group="training")
