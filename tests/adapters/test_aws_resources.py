"""Every kind of AWS resource on the local endpoint: created once, listed by tag, deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import boto3
import pytest

from stationmaster.aws.workflows import Workflows
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.names import FSX_CSI_ADDON, POD_IDENTITY_AGENT
from stationmaster.domain.resources import Left, ResourceKind
from stationmaster.local.aws import Deployment, LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings
from stationmaster.steps.parts.leftovers import left_in_account
from tests.support.aws_fixtures import until

CLUSTER_IDS = (f"tiny-llama-{number:08x}" for number in count())
EFA = get_instance("p4d.24xlarge")


@pytest.fixture
def services(settings: Settings, aws: LocalAws) -> Iterator[Services]:
    yield Services(settings)
    aws.clear_injected()


@pytest.fixture
def cluster_id() -> str:
    return next(CLUSTER_IDS)


def create_everything(services: Services, cluster_id: str) -> None:
    """Ask for each kind twice, as a step that is repeated does; the CNI leaves an interface."""
    for _ in range(2):
        group = services.security_groups.ensure(cluster_id, instance_type=EFA.name)
        services.clusters.ensure(cluster_id, version="1.35", security_group_id=group.group_id)
        services.launch_templates.ensure_system(cluster_id, security_group_ids=[group.group_id])
        services.launch_templates.ensure_training(
            cluster_id, instance=EFA, security_group_ids=[group.group_id]
        )
        services.placement_groups.ensure(cluster_id)
        services.file_systems.ensure(
            cluster_id,
            storage_gib=1200,
            mbps_per_tib=250,
            subnet_id=group.subnet_id,
            security_group_id=group.group_id,
        )
        services.metrics_logs.ensure(cluster_id)
    link_data(services, cluster_id)
    until(lambda: services.clusters.describe(cluster_id).status == "ACTIVE")
    for _ in range(2):
        services.node_groups.ensure_system(cluster_id, instance_type="c5.2xlarge")
        services.access_entries.ensure(cluster_id)
        services.pod_identities.ensure(cluster_id)
        services.addons.ensure(cluster_id, POD_IDENTITY_AGENT)
        services.addons.ensure(cluster_id, FSX_CSI_ADDON)
    add_interface(services, cluster_id)
    add_volume(services, cluster_id)
    until(lambda: services.instances.left(cluster_id))


def add_volume(services: Services, cluster_id: str) -> None:
    """A volume that an instance of the cluster has left behind."""
    tags = [{"Key": "stationmaster:cluster-id", "Value": cluster_id}]
    boto3.client("ec2", region_name=services.settings.region).create_volume(
        AvailabilityZone=f"{services.settings.region}a",
        Size=100,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )


def link_data(services: Services, cluster_id: str) -> None:
    """Ask twice for a link of the cluster's file system to a bucket."""
    s3 = boto3.client("s3", region_name=services.settings.region)
    region = {"LocationConstraint": services.settings.region}
    with suppress(s3.exceptions.BucketAlreadyOwnedByYou):
        s3.create_bucket(Bucket="research-data", CreateBucketConfiguration=region)
    for _ in range(2):
        services.data_links.ensure(
            cluster_id,
            file_system_id=services.file_systems.describe(cluster_id).file_system_id,
            path="/linked",
            source="s3://research-data/images/",
        )


def add_interface(services: Services, cluster_id: str) -> str:
    """A network interface as the VPC CNI of the cluster makes it, attached to nothing; its id."""
    group = services.security_groups.describe(cluster_id)
    tags = [{"Key": "cluster.k8s.amazonaws.com/name", "Value": f"stationmaster-{cluster_id}"}]
    made = boto3.client("ec2", region_name=services.settings.region).create_network_interface(
        SubnetId=group.subnet_id,
        Groups=[group.group_id],
        Description="aws-K8S-i-0123456789abcdef0",
        TagSpecifications=[{"ResourceType": "network-interface", "Tags": tags}],
    )
    return made["NetworkInterface"]["NetworkInterfaceId"]


def test_repeated_creations_leave_one_of_each_listed_in_deletion_order(
    services: Services, cluster_id: str
) -> None:
    create_everything(services, cluster_id)
    name = f"stationmaster-{cluster_id}"

    left = left_in_account(services, cluster_id)

    assert list(dict.fromkeys(each.kind for each in left)) == list(services.in_deletion_order())
    assert [str(each) for each in left[2:]] == [
        "node group system",
        f"cluster {name}",
        f"instance c5.2xlarge {left[4].id}",
        f"volume {left[5].id} of 100 GiB",
        f"network interface {left[6].id}",
        f"launch template {name}-system",
        f"launch template {name}",
        f"placement group {name}",
        f"security group of EKS {name}",
        f"security group {name}",
        f"log group /aws/containerinsights/{name}/performance",
    ]
    assert str(left[0]).startswith("data link dra-")
    assert str(left[1]).startswith("file system fs-")
    assert left_in_account(services, "another-run") == []
    role = services.settings.fsx_csi_role_arn
    eks = boto3.client("eks", region_name=services.settings.region)
    described = eks.describe_addon(clusterName=name, addonName=FSX_CSI_ADDON)["addon"]
    assert described["podIdentityAssociations"] == [
        {"serviceAccount": "fsx-csi-controller-sa", "roleArn": role}
    ]
    found = eks.list_pod_identity_associations(clusterName=name)["associations"]
    accounts = {each["serviceAccount"] for each in found}
    assert accounts == {"stationmaster-relay", "stationmaster-stager"}
    agent = services.addons.describe(cluster_id, POD_IDENTITY_AGENT)
    assert agent is not None
    assert agent.status in ("CREATING", "ACTIVE")
    release_everything(services, cluster_id)


def release_everything(services: Services, cluster_id: str) -> None:
    """Request every deletion until nothing is left, whatever is still in use."""
    kinds = services.in_deletion_order()

    def nothing_left() -> bool:
        left = left_in_account(services, cluster_id)
        for each in left:
            kinds[each.kind].release(cluster_id, each.id)
        return not left

    until(nothing_left)


@pytest.mark.parametrize(
    ("kind", "resource_id"),
    [
        (ResourceKind.DATA_LINK, "dra-0123456789abcdef0"),
        (ResourceKind.FILE_SYSTEM, "fs-0123456789abcdef0"),
        (ResourceKind.NODE_GROUP, "training"),
        (ResourceKind.CLUSTER, "stationmaster-gone"),
        (ResourceKind.INSTANCE, "i-0123456789abcdef0"),
        (ResourceKind.VOLUME, "vol-0123456789abcdef0"),
        (ResourceKind.NETWORK_INTERFACE, "eni-0123456789abcdef0"),
        (ResourceKind.LAUNCH_TEMPLATE, "lt-0123456789abcdef0"),
        (ResourceKind.PLACEMENT_GROUP, "stationmaster-gone"),
        (ResourceKind.EKS_SECURITY_GROUP, "sg-0123456789abcdef0"),
        (ResourceKind.SECURITY_GROUP, "sg-0123456789abcdef0"),
        (ResourceKind.LOG_GROUP, "/aws/containerinsights/stationmaster-gone/performance"),
    ],
)
def test_deletion_of_what_is_gone_is_no_error(
    services: Services, kind: ResourceKind, resource_id: str
) -> None:
    services.in_deletion_order()[kind].release("gone", resource_id)

    assert left_in_account(services, "gone") == []


def test_network_interface_of_an_instance_is_left_to_it(
    services: Services, cluster_id: str
) -> None:
    create_everything(services, cluster_id)
    used, unused = add_interface(services, cluster_id), add_interface(services, cluster_id)
    ec2 = boto3.client("ec2", region_name=services.settings.region)
    own = {"Name": "tag:stationmaster:cluster-id", "Values": [cluster_id]}
    (node,) = until(lambda: ec2.describe_instances(Filters=[own])["Reservations"])[0]["Instances"]
    ec2.attach_network_interface(
        NetworkInterfaceId=used, InstanceId=node["InstanceId"], DeviceIndex=7
    )

    left = {each.id for each in services.network_interfaces.left(cluster_id)}

    assert unused in left
    assert used not in left
    release_everything(services, cluster_id)


@pytest.mark.parametrize(
    ("kind", "operation", "code"),
    [
        (ResourceKind.NETWORK_INTERFACE, "DeleteNetworkInterface", "InvalidParameterValue"),
        (ResourceKind.NETWORK_INTERFACE, "DeleteNetworkInterface", "InvalidNetworkInterface.InUse"),
        (ResourceKind.PLACEMENT_GROUP, "DeletePlacementGroup", "InvalidPlacementGroup.InUse"),
        (ResourceKind.EKS_SECURITY_GROUP, "DeleteSecurityGroup", "DependencyViolation"),
        (ResourceKind.SECURITY_GROUP, "DeleteSecurityGroup", "DependencyViolation"),
    ],
)
def test_deletion_that_aws_refuses_for_now_is_no_error(
    services: Services, aws: LocalAws, kind: ResourceKind, operation: str, code: str
) -> None:
    aws.forget_calls()
    aws.inject("ec2", operation, code)

    services.in_deletion_order()[kind].release("used", "by-something")

    assert ("ec2", operation) in aws.calls


def test_security_group_keeps_the_subnet_chosen_with_it(
    services: Services, cluster_id: str, deployed: Deployment
) -> None:
    created = services.security_groups.ensure(cluster_id, instance_type=EFA.name)

    assert created.subnet_id in deployed.subnet_ids
    assert services.security_groups.describe(cluster_id) == created
    assert services.security_groups.left(cluster_id) == [
        Left(ResourceKind.SECURITY_GROUP, f"stationmaster-{cluster_id}", created.group_id)
    ]


def test_instance_type_that_no_zone_offers_is_named(services: Services, cluster_id: str) -> None:
    with pytest.raises(PermanentError, match=r"x9\.large is offered in none of the zones us-west"):
        services.security_groups.ensure(cluster_id, instance_type="x9.large")


@pytest.mark.parametrize(
    "answer",
    [
        lambda workflows, token: workflows.wait_succeeded(token),
        lambda workflows, token: workflows.wait_failed(token, error="E", cause="c"),
        lambda workflows, token: workflows.heartbeat(token),
    ],
)
@pytest.mark.parametrize("code", ["TaskDoesNotExist", "TaskTimedOut", "InvalidToken"])
def test_task_token_that_nobody_waits_for_is_no_error(
    services: Services, aws: LocalAws, answer: Callable[[Workflows, str], None], code: str
) -> None:
    aws.inject("states", "*", code)

    answer(services.workflows, "a-token")


def test_other_refusal_of_a_task_token_is_an_error(services: Services, aws: LocalAws) -> None:
    aws.inject("states", "*", "AccessDeniedException", message="TaskTimedOut in its words")

    with pytest.raises(PermanentError, match=r"AccessDeniedException: .*TaskTimedOut"):
        services.workflows.wait_succeeded("a-token")
