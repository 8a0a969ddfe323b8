"""Each shape of a cluster: what it asks of AWS, and that its end leaves what others have.

The shape of a guest, which makes nothing but objects of Kubernetes, is in the workflow tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from their_file_system import Theirs, begin

from stationmaster.domain.names import cluster_name
from stationmaster.domain.run import events as ev
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.parts.leftovers import find_left
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_network import release_network
from stationmaster.steps.release_node_group import release_node_group
from stationmaster.steps.verify_released import verify_released
from tests.support.aws_steps import Account

P5 = "p5.48xlarge"
ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")


def plain(account: Account) -> Account:
    account.request()
    return account


def reservation(account: Account, **more: Any) -> Account:
    made = account.aws.client("ec2").create_capacity_reservation(
        InstanceType=P5,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONES[1],
        InstanceCount=2,
        **more,
    )["CapacityReservation"]
    found = account.services.reservations.look_up(made["CapacityReservationId"]).reservation
    account.request(recipe="llama2-7b", nodes=2, instance_type=P5, reservation=found)
    return account


def reservation_in_a_placement_group(account: Account) -> Account:
    ec2 = account.aws.client("ec2")
    ec2.create_placement_group(GroupName="theirs", Strategy="cluster")
    (group,) = ec2.describe_placement_groups(GroupNames=["theirs"])["PlacementGroups"]
    return reservation(account, PlacementGroupArn=group["GroupArn"])


def network(account: Account) -> Account:
    """A deployment in the network that a person has made."""
    ec2 = account.aws.client("ec2")
    vpc_id = ec2.create_vpc(CidrBlock="10.90.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc_id, CidrBlock=f"10.90.{n}.0/24", AvailabilityZone=zone)
        for n, zone in enumerate(ZONES)
    ]
    subnet_ids = tuple(each["Subnet"]["SubnetId"] for each in subnets)
    theirs = account.settings.model_copy(update={"vpc_id": vpc_id, "subnet_ids": subnet_ids})
    there = replace(account, settings=theirs)
    there.request()
    return there


def file_system(account: Account) -> Account:
    begin(account, Theirs(account))
    return account


def link(account: Account) -> Account:
    """A bucket of somebody is linked to the file system."""
    s3 = account.aws.client("s3")
    where = {"LocationConstraint": account.aws.region}
    s3.create_bucket(Bucket="research-data", CreateBucketConfiguration=where)
    s3.put_object(Bucket="research-data", Key="texts/a.txt", Body=b"a text")
    account.request()
    return account


SHAPES = (plain, reservation, reservation_in_a_placement_group, network, file_system, link)


def build(account: Account, shape: Callable[[Account], Account]) -> dict[str, Any]:
    """All that costs; what the account had before, with what the shape uses of others."""
    before = in_account(account)
    account.finish(ensure_cluster)
    account.finish(ensure_node_group, node_group="system")
    account.finish(ensure_node_group, node_group="training")
    account.finish(ensure_file_system)
    if shape is link:
        made = account.services.file_systems.describe(account.cluster_id)
        assert made is not None
        account.services.data_links.ensure(
            account.cluster_id,
            file_system_id=made.file_system_id,
            path="/linked",
            source="s3://research-data/texts/",
        )
        account.aws.finish_lifecycles()
        (linked,) = in_account(account)["links"]
        assert linked.get("S3", {}) == {}, "a policy writes to the bucket, or changes it"
    return before


def release(account: Account) -> None:
    """As the teardown workflow walks."""
    if account.cluster.leases:
        account.enter(ev.RunPhase.FAILED, reason="for the test")
        release_lease(account.services, account.run_id)
    account.call(begin_teardown)
    account.finish(release_file_system)
    account.finish(release_node_group, node_group="system")
    account.finish(release_node_group, node_group="training")
    account.finish(release_cluster)
    account.finish(release_network)
    account.finish(verify_released)


def in_account(account: Account) -> dict[str, Any]:
    """All that a deletion could take or change, as AWS lists it."""
    ec2, fsx, eks, s3 = (account.aws.client(name) for name in ("ec2", "fsx", "eks", "s3"))
    buckets = [each["Name"] for each in s3.list_buckets()["Buckets"]]
    return {
        "clusters": eks.list_clusters()["clusters"],
        "file systems": fsx.describe_file_systems()["FileSystems"],
        "links": fsx.describe_data_repository_associations()["Associations"],
        "objects": {
            name: [
                (each["Key"], each["ETag"], each["LastModified"])
                for each in s3.list_objects_v2(Bucket=name).get("Contents", [])
            ]
            for name in buckets
        },
        "networks": ec2.describe_vpcs()["Vpcs"],
        "subnets": ec2.describe_subnets()["Subnets"],
        "route tables": ec2.describe_route_tables()["RouteTables"],
        "groups": ec2.describe_security_groups()["SecurityGroups"],
        "interfaces": ec2.describe_network_interfaces()["NetworkInterfaces"],
        "placement groups": ec2.describe_placement_groups()["PlacementGroups"],
        "launch templates": ec2.describe_launch_templates()["LaunchTemplates"],
        "reservations": ec2.describe_capacity_reservations()["CapacityReservations"],
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_end_of_a_cluster_leaves_the_account_as_it_was(
    account: Account, shape: Callable[[Account], Account]
) -> None:
    account = shape(account)
    before = build(account, shape)
    assert in_account(account) != before

    release(account)

    assert find_left(account.services, account.cluster_id) == []
    after = in_account(account)
    assert {kind: after[kind] for kind in after if after[kind] != before[kind]} == {}


def test_cluster_in_a_network_of_others_is_made_in_its_subnets_only(account: Account) -> None:
    there = network(account)
    build(there, network)

    theirs, name = set(there.settings.subnet_ids), cluster_name(there.cluster_id)
    eks, fsx, ec2 = (there.aws.client(each) for each in ("eks", "fsx", "ec2"))
    made = eks.describe_cluster(name=name)["cluster"]["resourcesVpcConfig"]
    used = {
        group: set(
            eks.describe_nodegroup(clusterName=name, nodegroupName=group)["nodegroup"]["subnets"]
        )
        for group in ("system", "training")
    }
    volume = there.services.file_systems.describe(there.cluster_id)
    assert volume is not None
    (described,) = fsx.describe_file_systems(FileSystemIds=[volume.file_system_id])["FileSystems"]
    (group,) = ec2.describe_security_groups(GroupIds=made["securityGroupIds"])["SecurityGroups"]
    release(there)
    assert set(made["subnetIds"]) == theirs
    assert used["system"] <= theirs
    # Nodes and their file system are in one zone.
    assert used["training"] == set(described["SubnetIds"]) < theirs
    assert group["VpcId"] == there.settings.vpc_id
