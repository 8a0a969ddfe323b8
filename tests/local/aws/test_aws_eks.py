"""The local EKS: lifecycles, error shapes, and what the observer and EC2 see."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.ec2.models import ec2_backends

from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    InProcessRuntime,
    LocalAws,
)
from tests.support.aws_fixtures import until

TAGS = {"stationmaster:run-id": "run-1"}


class Observer:
    """Keeps what is reported to it; its disk has no room for a file system."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def file_system_available(self, *, file_system_id: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", f"/state/{file_system_id}")

    def __getattr__(self, name: str) -> Any:
        return lambda **fields: self.seen.append((name, fields))


@pytest.fixture(scope="module")
def observer() -> Observer:
    return Observer()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, observer: Observer) -> Iterator[LocalAws]:
    """An endpoint whose clusters take 0.2 s."""
    with LocalAws(
        state_dir=tmp_path_factory.mktemp("aws"),
        invoker=InProcessRuntime(),
        handlers=[],
        speed=2400.0,
        observer=observer,
        kubernetes_endpoint="https://127.0.0.1:6443",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def made(endpoint: LocalAws) -> Deployment:
    return endpoint.deploy(DeploymentSpec(roles=["eks"], network="stationmaster"))


@pytest.fixture
def eks(endpoint: LocalAws, observer: Observer) -> Iterator[Any]:
    yield endpoint.client("eks")
    endpoint.faults.clear()
    observer.seen.clear()


def wait_for(client: Any, waiter: str, **names: str) -> None:
    """Wait as boto3 does, without its half minute between polls."""
    found = client.get_waiter(waiter)
    found.wait(**names, WaiterConfig={"Delay": 0.02, "MaxAttempts": 500})


def create_cluster(eks: Any, made: Deployment, name: str, *, ready: bool = True) -> dict[str, Any]:
    """Create a cluster, and wait until it is ACTIVE."""
    answer: dict[str, Any] = eks.create_cluster(
        name=name,
        roleArn=made.role_arns["eks"],
        version="1.35",
        resourcesVpcConfig={"subnetIds": made.subnet_ids},
        tags=TAGS,
    )["cluster"]
    if ready:
        wait_for(eks, "cluster_active", name=name)
    return answer


def create_group(eks: Any, made: Deployment, cluster: str, **fields: Any) -> dict[str, Any]:
    """Create a node group of two p4d in the first zone."""
    answer: dict[str, Any] = eks.create_nodegroup(
        **{
            "clusterName": cluster,
            "nodegroupName": "gpu",
            "subnets": made.subnet_ids[:1],
            "nodeRole": made.role_arns["eks"],
            "instanceTypes": ["p4d.24xlarge"],
            "scalingConfig": {"minSize": 0, "maxSize": 4, "desiredSize": 2},
            "labels": {"pool": "gpu"},
            "taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
            "tags": TAGS,
            **fields,
        }
    )["nodegroup"]
    return answer


def refused(code: str, words: str, call: Any, **arguments: Any) -> None:
    with pytest.raises(ClientError, match=words) as caught:
        call(**arguments)
    assert caught.value.response["Error"]["Code"] == code


def test_what_eks_refuses_is_refused(eks: Any, endpoint: LocalAws, made: Deployment) -> None:
    role, network = made.role_arns["eks"], {"subnetIds": made.subnet_ids}
    cluster: dict[str, Any] = {"name": "x", "roleArn": role, "resourcesVpcConfig": network}
    create_cluster(eks, made, "ready")
    create_group(eks, made, "ready")
    wait_for(eks, "nodegroup_active", clusterName="ready", nodegroupName="gpu")
    held = {"clusterName": "ready", "principalArn": role}
    pods = {"clusterName": "ready", "namespace": "a", "serviceAccount": "b", "roleArn": role}
    eks.create_access_entry(**held)
    eks.create_pod_identity_association(**pods)
    in_use, invalid = "ResourceInUseException", "InvalidParameterException"

    refused(in_use, "already exists", eks.create_cluster, **cluster | {"name": "ready"})
    one_zone = {"subnetIds": made.subnet_ids[:1]}
    refused(
        invalid,
        "two different AZs",
        eks.create_cluster,
        **cluster | {"resourcesVpcConfig": one_zone},
    )
    refused(invalid, r"unsupported .* 1\.99", eks.create_cluster, **cluster, version="1.99")
    with endpoint.lifecycles_held():
        create_cluster(eks, made, "early", ready=False)
        not_active = "InvalidRequestException", "not in ACTIVE status"
        refused(*not_active, create_group, eks=eks, made=made, cluster="early")
    refused(in_use, "already exists", create_group, eks=eks, made=made, cluster="ready")
    missing = "ResourceNotFoundException"
    nowhere = {"clusterName": "ready", "nodegroupName": "other"}
    refused(missing, "No node group found", eks.describe_nodegroup, **nowhere)
    elsewhere: dict[str, Any] = {"nodegroupName": "x", "subnets": ["subnet-0"]}
    refused(
        invalid, "does not exist", create_group, eks=eks, made=made, cluster="ready", **elsewhere
    )
    refused(in_use, "nodegroups attached", eks.delete_cluster, name="ready")
    addon = {"clusterName": "ready", "addonName": "nvidia-plugin"}
    refused(invalid, "not supported", eks.create_addon, **addon)
    refused(missing, "No addon: nvidia-plugin", eks.describe_addon, **addon)
    refused(in_use, "already in use", eks.create_access_entry, **held)
    refused(in_use, "already exists", eks.create_pod_identity_association, **pods)


def test_node_group_becomes_active_and_its_instances_exist(
    eks: Any, endpoint: LocalAws, made: Deployment, observer: Observer
) -> None:
    create_cluster(eks, made, "nodes")

    creating = create_group(eks, made, "nodes")
    wait_for(eks, "nodegroup_active", clusterName="nodes", nodegroupName="gpu")

    active = eks.describe_nodegroup(clusterName="nodes", nodegroupName="gpu")["nodegroup"]
    seen = [fields for name, fields in observer.seen if name == "node_group_active"]
    assert (creating["status"], active["status"]) == ("CREATING", "ACTIVE")
    assert active["resources"]["autoScalingGroups"][0]["name"].startswith("eks-gpu-")
    assert active["tags"] == TAGS
    assert seen == [
        {
            "cluster": "nodes",
            "name": "gpu",
            "instance_type": "p4d.24xlarge",
            "instance_ids": [each["InstanceId"] for each in instances(endpoint, "nodes")],
            "zone": "us-west-2a",
            "labels": {"pool": "gpu", "eks.amazonaws.com/capacityType": "ON_DEMAND"},
            "taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
        }
    ]
    assert len(instances(endpoint, "nodes")) == 2


def instances(endpoint: LocalAws, cluster: str) -> list[Any]:
    """Return the live instances of a cluster."""
    found = endpoint.client("ec2").describe_instances(
        Filters=[
            {"Name": "tag:eks:cluster-name", "Values": [cluster]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
    )
    return [each for group in found["Reservations"] for each in group["Instances"]]


def test_instance_that_its_auto_scaling_group_terminates_is_replaced_once(
    eks: Any, endpoint: LocalAws, made: Deployment, observer: Observer
) -> None:
    create_cluster(eks, made, "replaced")
    create_group(eks, made, "replaced")
    wait_for(eks, "nodegroup_active", clusterName="replaced", nodegroupName="gpu")
    bad, good = [each["InstanceId"] for each in instances(endpoint, "replaced")]
    scaling = endpoint.client("autoscaling")

    with endpoint.lifecycles_held():
        for _ in range(2):
            answer = scaling.terminate_instance_in_auto_scaling_group(
                InstanceId=bad, ShouldDecrementDesiredCapacity=False
            )
            assert answer["Activity"]["Description"] == f"Terminating EC2 instance: {bad}"
    endpoint.finish_lifecycles()

    there = [each["InstanceId"] for each in instances(endpoint, "replaced")]
    seen = [fields["instance_ids"] for name, fields in observer.seen if name == "node_group_active"]
    assert (len(there), good in there, bad in there) == (2, True, False)
    assert (seen[-2], sorted(seen[-1])) == ([good], sorted(there))
    with pytest.raises(scaling.exceptions.ClientError, match="No managed instance found"):
        scaling.terminate_instance_in_auto_scaling_group(
            InstanceId=bad, ShouldDecrementDesiredCapacity=False
        )


def test_node_group_delete_ends_its_instances_and_frees_the_cluster(
    eks: Any, endpoint: LocalAws, made: Deployment, observer: Observer
) -> None:
    create_cluster(eks, made, "shrink")
    create_group(eks, made, "shrink")
    wait_for(eks, "nodegroup_active", clusterName="shrink", nodegroupName="gpu")
    ec2 = endpoint.client("ec2")
    held = instances(endpoint, "shrink")[0]["NetworkInterfaces"][0]["NetworkInterfaceId"]

    eks.delete_nodegroup(clusterName="shrink", nodegroupName="gpu")
    wait_for(eks, "nodegroup_deleted", clusterName="shrink", nodegroupName="gpu")

    assert instances(endpoint, "shrink") == []
    with pytest.raises(ec2.exceptions.ClientError, match=r"InvalidNetworkInterfaceID\.NotFound"):
        ec2.describe_network_interfaces(NetworkInterfaceIds=[held])
    assert ("node_group_deleted", {"cluster": "shrink", "name": "gpu"}) in observer.seen
    assert eks.delete_cluster(name="shrink")["cluster"]["status"] == "DELETING"
    wait_for(eks, "cluster_deleted", name="shrink")
    assert ("cluster_deleted", {"name": "shrink"}) in observer.seen


def test_cluster_versions_have_one_default_in_standard_support(eks: Any) -> None:
    versions = eks.describe_cluster_versions()["clusterVersions"]
    (first,) = eks.describe_cluster_versions(maxResults=1)["clusterVersions"]
    default = eks.describe_cluster_versions(defaultOnly=True)["clusterVersions"]

    assert len(versions) > len(default) == 1
    assert default[0]["versionStatus"] == "STANDARD_SUPPORT"
    assert first == versions[0]
    assert [each["clusterVersion"] for each in versions if "EXT" in each["versionStatus"]] == [
        "1.33",
        "1.32",
        "1.31",
    ]


def test_tagging_api_lists_while_a_node_group_starts_instances(
    eks: Any, endpoint: LocalAws, made: Deployment
) -> None:
    create_cluster(eks, made, "listed")
    create_group(eks, made, "listed")
    backend = ec2_backends[endpoint.account_id][endpoint.region]
    listed = backend.iter_tagged_resources()
    next(listed)

    instances = endpoint.client("ec2").run_instances(
        ImageId="ami-12c6146b", MinCount=1, MaxCount=1, SubnetId=made.subnet_ids[0]
    )["Instances"]

    assert instances[0]["InstanceId"] not in [each.arn.rsplit("/")[-1] for each in listed]


def test_file_system_that_finds_no_room_here_fails_with_the_reason(
    endpoint: LocalAws, made: Deployment
) -> None:
    fsx = endpoint.client("fsx")
    identity = fsx.create_file_system(
        FileSystemType="LUSTRE",
        FileSystemTypeVersion="2.15",
        StorageCapacity=1200,
        SubnetIds=made.subnet_ids[:1],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
    )["FileSystem"]["FileSystemId"]

    def ended() -> Any:
        (described,) = fsx.describe_file_systems(FileSystemIds=[identity])["FileSystems"]
        return described if described["Lifecycle"] != "CREATING" else None

    described = until(ended)
    assert described["Lifecycle"] == "FAILED"
    assert described["FailureDetails"]["Message"] == (
        f"The file system could not be created: /state/{identity}: no space left on device"
    )
