"""The steps on a file system that a person made: where nodes go, and what is never asked of FSx."""

from __future__ import annotations

import pytest
from their_file_system import Theirs, begin

from stationmaster.cluster_file_system import shared_storage
from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.resources import ResourceKind
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.ensure_node_group import ensure_node_group
from tests.support.aws_steps import Account


def own_group(account: Account) -> str:
    group = account.services.security_groups.describe(account.cluster_id)
    assert group is not None
    return group.group_id


def test_nodes_of_both_groups_are_made_in_its_zone_and_join_its_group(account: Account) -> None:
    theirs = Theirs(account)
    begin(account, theirs)

    account.finish(ensure_cluster)
    for node_group in ("system", "training"):
        account.finish(ensure_node_group, node_group=node_group)

    for node_group in ("system", "training"):
        assert account.node_group(node_group)["subnets"] == [theirs.subnet_id]
        groups = account.template(node_group)["SecurityGroupIds"]
        assert groups[0] == own_group(account)
        assert groups[-1] == theirs.group_id


def test_network_that_it_lets_in_is_enough_and_its_servers_are_let_in_to_the_nodes(
    account: Account,
) -> None:
    theirs = Theirs(account, IpRanges=[{"CidrIp": "10.0.0.0/8"}])
    begin(account, theirs)

    account.finish(ensure_cluster)
    account.finish(ensure_node_group, node_group="training")

    assert theirs.group_id not in account.template()["SecurityGroupIds"]
    (own,) = theirs.ec2.describe_security_groups(GroupIds=[own_group(account)])["SecurityGroups"]
    let_in = {
        (rule.get("FromPort"), rule.get("ToPort"))
        for rule in own["IpPermissions"]
        for pair in rule["UserIdGroupPairs"]
        if pair["GroupId"] == theirs.group_id
    }
    assert let_in == {(988, 988), (1018, 1023)}


def test_nothing_is_asked_of_fsx_but_to_describe_and_nothing_is_recorded(account: Account) -> None:
    theirs = Theirs(account)
    before = theirs.described
    begin(account, theirs)
    account.aws.forget_calls()

    account.finish(ensure_cluster)
    account.finish(ensure_file_system)

    asked = {operation for service, operation in account.aws.calls if service == "fsx"}
    assert asked == {"DescribeFileSystems"}
    assert theirs.described == before
    kinds = {each.kind for each in account.cluster.resources.values()}
    assert ResourceKind.FILE_SYSTEM not in kinds
    storage = shared_storage(account.services, account.cluster_id)
    assert (storage.file_system_id, storage.mount_name) == (
        theirs.file_system_id,
        before["LustreConfiguration"]["MountName"],
    )


def test_file_system_that_goes_meanwhile_fails_the_cluster_with_its_name(account: Account) -> None:
    theirs = Theirs(account)
    begin(account, theirs)
    account.finish(ensure_cluster)
    theirs.fsx.delete_file_system(FileSystemId=theirs.file_system_id)

    for step, arguments in (
        (ensure_file_system, {}),
        (ensure_node_group, {"node_group": "system"}),
    ):
        with pytest.raises(ResourceFailed, match=theirs.file_system_id):
            account.call(step, **arguments)
