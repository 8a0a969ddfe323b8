"""Whole clusters: in each shape, and in an account that refuses, forgets and loses answers.

Each comes up, or one sentence says what is wrong, where, and what to do. Whatever happened, its end
leaves what others have and nothing else. The shape of a guest, which makes nothing but objects of
Kubernetes, is in the workflow tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from their_file_system import Theirs, begin

from stationmaster.domain.errors import PermanentError, ResourceFailed, TransientError
from stationmaster.domain.names import cluster_name
from stationmaster.domain.run import events as ev
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.parts.leftovers import find_left
from stationmaster.steps.release_lease import release_lease
from tests.chaos import foreign
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account, Step
from tests.support.whole_clusters import DELETING, MAKING

P5 = "p5.48xlarge"
ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
# As often as the state machines try a step again.
TRIES = 7


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


SHAPES = (reservation, network, file_system, link)


def finish(account: Account, step: Step) -> None:
    """Call a step as its state machine does: again after an answer, and after what passes."""
    tries = 0

    def is_done() -> bool:
        nonlocal tries
        account.late += timedelta(seconds=1)
        try:
            done = account.call(step)
        except TransientError:
            tries += 1
            if tries == TRIES:
                raise
            return False
        tries = 0
        return done

    until(is_done)


def make(account: Account) -> None:
    for step in MAKING:
        finish(account, step)


def begin_to_delete(account: Account) -> None:
    if account.cluster.leases:
        account.enter(ev.RunPhase.FAILED, reason="for the test")
        release_lease(account.services, account.run_id)
    finish(account, begin_teardown)


def delete(account: Account) -> None:
    begin_to_delete(account)
    for step in DELETING:
        finish(account, step)
    account.aws.finish_lifecycles()


def make_link(account: Account) -> None:
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


def in_account(account: Account) -> dict[str, Any]:
    """All that a deletion could take, change or leave, as AWS lists it."""
    ec2, fsx, s3 = (account.aws.client(name) for name in ("ec2", "fsx", "s3"))
    living = [{"Name": "instance-state-name", "Values": ["pending", "running", "stopping"]}]
    return foreign.in_account(account.aws) | {
        "links": fsx.describe_data_repository_associations()["Associations"],
        "objects": {
            bucket["Name"]: [
                (each["Key"], each["ETag"], each["LastModified"])
                for each in s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", [])
            ]
            for bucket in s3.list_buckets()["Buckets"]
        },
        "instances": [
            each["InstanceId"]
            for reserved in ec2.describe_instances(Filters=living)["Reservations"]
            for each in reserved["Instances"]
        ],
        "volumes": ec2.describe_volumes()["Volumes"],
        "networks": ec2.describe_vpcs()["Vpcs"],
        "subnets": ec2.describe_subnets()["Subnets"],
        "route tables": ec2.describe_route_tables()["RouteTables"],
        "reservations": ec2.describe_capacity_reservations()["CapacityReservations"],
    }


def changed(account: Account, before: dict[str, Any]) -> dict[str, Any]:
    after = in_account(account)
    return {kind: after[kind] for kind in after if after[kind] != before[kind]}


@pytest.mark.parametrize("shape", SHAPES)
def test_end_of_a_cluster_leaves_the_account_as_it_was(
    account: Account, shape: Callable[[Account], Account]
) -> None:
    account = shape(account)
    before = in_account(account)
    make(account)
    if shape is link:
        make_link(account)
    assert changed(account, before)

    delete(account)

    assert find_left(account.services, account.cluster_id) == []
    deleted = [(event.kind, event.name) for event in account.events("resource.deleted")]
    assert sorted(deleted) == sorted(
        (each.kind, each.name) for each in account.cluster.resources.values()
    )
    assert changed(account, before) == {}


@pytest.mark.parametrize(
    "fault",
    [
        "eventual-consistency",
        "lost-answers",
        "node-group-delete-fails",
        "placement-group-in-use",
        "interfaces-left",
    ],
)
def test_cluster_comes_up_and_goes_all_the_same(account: Account, fault: str) -> None:
    account.aws.faults.add(fault)
    before = in_account(account)
    account.request(instance_type="p4d.24xlarge")

    make(account)
    made = changed(account, before)
    delete(account)

    assert len(made["instances"]) == len(made["volumes"]) == account.cluster.spec.nodes + 1
    assert made["placement groups"]
    assert changed(account, before) == {}


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (
            "vcpu-quota",
            ResourceFailed,
            r"node group training of 2 x p4d.24xlarge: .*VcpuLimitExceeded.*limit of 0.*; "
            r"ask for more vCPUs of these instances in Service Quotas$",
        ),
        (
            "unsupported-zone",
            PermanentError,
            r"creating cluster .*us-west-2a.*choose from these availability zones: us-west-2b.*; "
            r"a deployment names its subnets with vpc_id and subnet_ids: two of them have to be",
        ),
    ],
)
def test_cluster_that_cannot_be_made_says_why_where_and_what_to_do(
    account: Account, fault: str, error: type[Exception], words: str
) -> None:
    account.aws.faults.add(fault)
    before = in_account(account)
    account.request(instance_type="p4d.24xlarge")

    with pytest.raises(error, match=words) as caught:
        make(account)

    assert "\n" not in str(caught.value)
    delete(account)
    assert changed(account, before) == {}


def test_cluster_in_a_network_of_others_is_made_in_its_subnets_only(account: Account) -> None:
    there = network(account)
    make(there)

    theirs, name = set(there.settings.subnet_ids), cluster_name(there.cluster_id)
    eks, fsx, ec2 = (there.aws.client(each) for each in ("eks", "fsx", "ec2"))
    made = eks.describe_cluster(name=name)["cluster"]["resourcesVpcConfig"]
    used = {each: set(there.node_group(each)["subnets"]) for each in ("system", "training")}
    volume = there.services.file_systems.describe(there.cluster_id)
    assert volume is not None
    (described,) = fsx.describe_file_systems(FileSystemIds=[volume.file_system_id])["FileSystems"]
    (group,) = ec2.describe_security_groups(GroupIds=made["securityGroupIds"])["SecurityGroups"]
    delete(there)
    assert set(made["subnetIds"]) == theirs
    # Nodes and their file system are in one zone.
    assert used["system"] == used["training"] == set(described["SubnetIds"]) < theirs
    assert group["VpcId"] == there.settings.vpc_id
