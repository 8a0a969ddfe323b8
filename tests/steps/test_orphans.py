"""What the account has of clusters that no record explains: what the reaper deletes of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import boto3
import pytest
from moto.ec2.models import ec2_backends

from stationmaster.aws.ec2_leftovers import EKS_TAG
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.names import (
    TAG_CLUSTER_ID,
    TAG_DEPLOYMENT,
    cluster_name,
)
from stationmaster.domain.resources import Left, ResourceKind
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_teardown import conclude_teardown
from stationmaster.steps.parts.leftovers import left_in_account, release_left
from stationmaster.steps.parts.orphans import Orphans, Standing, find_orphans
from stationmaster.steps.parts.records import request_resource
from stationmaster.steps.release_lease import release_lease
from tests.support.aws_steps import IDLE, Account
from tests.support.whole_clusters import MAKING

SPEED = IDLE
FILE_SYSTEM = {ResourceKind.FILE_SYSTEM}


@pytest.fixture
def left(alone: Account) -> Iterator[Account]:
    """An account with all that a cluster can have; cleared afterwards, for the next test."""
    made(alone)
    yield alone
    for _ in range(8):
        release_left(
            alone.services, alone.cluster_id, left_in_account(alone.services, alone.cluster_id)
        )
        alone.aws.finish_lifecycles()


def made(account: Account) -> None:
    """A run's own cluster, all of which says which run has caused it; its teardown has begun."""
    account.request()
    for step in MAKING:
        while not account.call(step):
            account.aws.finish_lifecycles()
    account.enter("failed", reason="for the test")
    release_lease(account.services, account.run_id)
    assert account.call(begin_teardown)


def released(account: Account) -> None:
    """A receipt was posted, although everything is there."""
    conclude_teardown(account.services, account.cluster_id)
    assert account.cluster.phase is ClusterPhase.RELEASED


def found(account: Account) -> Orphans | None:
    """What this pass finds of the account's own cluster."""
    of_cluster = [
        each for each in find_orphans(account.services) if each.cluster_id == account.cluster_id
    ]
    account.aws.finish_lifecycles()
    return of_cluster[0] if of_cluster else None


def kinds(left: list[Left]) -> set[ResourceKind]:
    return {each.kind for each in left}


def swept(account: Account) -> list[Left]:
    """What stays when the reaper has come by often enough."""
    for _ in range(8):
        found(account)
    return left_in_account(account.services, account.cluster_id)


def test_what_is_left_of_a_released_cluster_is_deleted_at_once(left: Account):
    released(left)

    first = found(left)

    assert first is not None
    assert first.standing is Standing.RELEASED
    assert swept(left) == []
    assert found(left) is None


@pytest.fixture
def empty(alone: Account) -> Account:
    """An account with a cluster that is released and has left nothing."""
    alone.request()
    name = cluster_name(alone.cluster_id)
    request_resource(alone.services, alone.cluster, ResourceKind.CLUSTER, name)
    alone.enter("failed", reason="for the test")
    release_lease(alone.services, alone.run_id)
    assert alone.call(begin_teardown)
    released(alone)
    return alone


def test_log_group_of_metrics_that_outlives_its_cluster_is_deleted(empty: Account):
    """As when a creation that was asked for before the teardown comes after it."""
    empty.services.metrics_logs.ensure(empty.cluster_id, run_id=empty.run_id)

    first = found(empty)

    assert first is not None
    name = f"/aws/containerinsights/{cluster_name(empty.cluster_id)}/performance"
    assert first.sentence == (
        f"cluster {empty.cluster_id} is released and has log group {name}; "
        "its deletion was requested"
    )
    assert empty.aws.client("logs").describe_log_groups()["logGroups"] == []
    assert found(empty) is None


@pytest.mark.parametrize(
    ("spoil", "standing"), [(Account.lose, Standing.UNKNOWN), (Account.damage, Standing.UNREADABLE)]
)
def test_cluster_without_a_readable_record_is_reported_and_not_deleted(
    left: Account, spoil, standing
):
    spoil(left, "CLUSTER")
    before = left_in_account(left.services, left.cluster_id)

    first = found(left)
    left.late += timedelta(days=30)

    assert first is not None
    assert (first.standing, first.deleted, list(first.left)) == (standing, (), before)
    assert first.sentence.startswith(f"cluster {left.cluster_id} is {standing.value} and has ")
    assert swept(left) == before


def test_what_the_record_of_a_released_cluster_does_not_explain_is_reported(left: Account):
    """Whoever may tag may write any tag, also on what is dear to somebody else."""
    tags = {TAG_CLUSTER_ID: left.cluster_id, TAG_DEPLOYMENT: left.settings.deployment}
    of_other = [{"Key": key, "Value": value} for key, value in tags.items()]
    theirs = boto3.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[left.settings.subnet_ids[0]],
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
        Tags=of_other,
    )["FileSystem"]["FileSystemId"]
    left.aws.finish_lifecycles()
    released(left)

    rest = swept(left)
    last = found(left)

    assert [each.id for each in rest] == [theirs]
    assert last is not None
    assert f"no record explains file system {theirs}: delete it" in last.sentence


def test_what_another_deployment_made_is_its_own_affair(left: Account):
    """Its clusters are in a table that this one does not know."""
    left.lose("CLUSTER")
    ours = left.services.settings
    left.services.settings = ours.model_copy(update={"deployment": "research"})
    before = left_in_account(left.services, left.cluster_id)

    assert found(left) is None
    assert swept(left) == before
    left.services.settings = ours


def test_cluster_that_is_open_is_left_to_its_own_teardown(left: Account):
    before = left_in_account(left.services, left.cluster_id)

    assert found(left) is None
    assert left_in_account(left.services, left.cluster_id) == before


def test_interface_and_group_that_aws_left_behind_after_a_receipt_are_deleted(alone: Account):
    """Neither carries a tag of the product; the cluster that they name is known."""
    alone.request()
    name, ec2 = cluster_name(alone.cluster_id), boto3.client("ec2")
    request_resource(alone.services, alone.cluster, ResourceKind.CLUSTER, name)
    own = ec2_backends[alone.aws.account_id][alone.aws.region].create_security_group(
        f"eks-cluster-sg-{name}", "EKS's own", vpc_id=alone.settings.vpc_id, tags={EKS_TAG: name}
    )  # nobody but AWS may set such a tag
    interface = ec2.create_network_interface(
        SubnetId=alone.settings.subnet_ids[0],
        TagSpecifications=[
            {
                "ResourceType": "network-interface",
                "Tags": [{"Key": "cluster.k8s.amazonaws.com/name", "Value": name}],
            }
        ],
    )["NetworkInterface"]["NetworkInterfaceId"]
    alone.enter("failed", reason="for the test")
    release_lease(alone.services, alone.run_id)
    alone.call(begin_teardown)
    released(alone)

    first = found(alone)

    assert first is not None
    assert {each.id for each in first.deleted} == {own.id, interface}
    assert swept(alone) == []


def test_one_cluster_that_cannot_be_looked_at_does_not_keep_the_others_from_it(left: Account):
    released(left)
    other = Account(left.aws, left.settings)
    other.services.security_groups.ensure(other.cluster_id, instance_type="m5.2xlarge")
    left.aws.inject("eks", "ListNodegroups", "AccessDeniedException")

    seen = {each.cluster_id for each in find_orphans(left.services)}
    again = {each.cluster_id for each in find_orphans(left.services)}

    assert len(seen & {left.cluster_id, other.cluster_id}) == 1
    assert {left.cluster_id, other.cluster_id} <= again
