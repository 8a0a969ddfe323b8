"""The local EKS: lifecycles, what it refuses of networks and launch templates, what it launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPES

from stationmaster.aws.launch_templates import LaunchTemplates
from stationmaster.domain.catalogue.instances import CATALOGUE
from stationmaster.local.aws import Deployment, LocalAws
from stationmaster.local.aws.emulation import current
from stationmaster.local.aws.services.eks_templates import launch_of
from stationmaster.local.aws.wire import ApiError
from stationmaster.settings import Settings

TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}
EFA = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "efa"}


class Observer:
    """Keeps what is reported to it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda **fields: self.seen.append((name, fields))


@pytest.fixture
def observer(aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Observer:
    made = Observer()
    monkeypatch.setattr(current(), "observer", made)
    return made


class Clusters:
    """What a test makes in EKS; each creation and deletion has come to its end at once."""

    def __init__(self, aws: LocalAws, deployed: Deployment) -> None:
        self.aws, self.eks, self.subnets = aws, aws.client("eks"), deployed.subnet_ids
        self.role = deployed.role_arns["eks-cluster"]

    def create(self, name: str, *, ready: bool = True, **changes: Any) -> None:
        network = {"subnetIds": self.subnets} | changes.pop("network", {})
        asked = {"name": name, "roleArn": self.role, "resourcesVpcConfig": network, **changes}
        self.eks.create_cluster(**asked)
        if ready:
            self.aws.finish_lifecycles()

    def add_group(self, cluster: str, **fields: Any) -> None:
        """Add two p4d in the first zone."""
        self.eks.create_nodegroup(
            **{
                "clusterName": cluster,
                "nodegroupName": "gpu",
                "subnets": self.subnets[:1],
                "nodeRole": self.role,
                "instanceTypes": ["p4d.24xlarge"],
                "scalingConfig": {"minSize": 0, "maxSize": 4, "desiredSize": 2},
                **fields,
            }
        )
        self.aws.finish_lifecycles()

    def instances(self, cluster: str) -> list[Any]:
        """Return the live instances of a cluster."""
        found = self.aws.client("ec2").describe_instances(
            Filters=[
                {"Name": "tag:eks:cluster-name", "Values": [cluster]},
                {"Name": "instance-state-name", "Values": ["pending", "running"]},
            ]
        )
        return [each for group in found["Reservations"] for each in group["Instances"]]


@pytest.fixture
def clusters(aws: LocalAws, deployed: Deployment) -> Clusters:
    return Clusters(aws, deployed)


@pytest.fixture(scope="module")
def trains(aws: LocalAws, deployed: Deployment) -> str:
    """A cluster that is active."""
    Clusters(aws, deployed).create("trains")
    return "trains"


@pytest.fixture(scope="module")
def other_subnet(aws: LocalAws) -> str:
    """A subnet of another VPC."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    return str(subnet)


def refused(code: str, words: str, call: Any, *arguments: Any, **fields: Any) -> None:
    with pytest.raises(ClientError, match=words) as caught:
        call(*arguments, **fields)
    assert caught.value.response["Error"]["Code"] == f"{code}Exception"


def test_what_eks_refuses_is_refused(clusters: Clusters, other_subnet: str) -> None:
    eks, subnet, create = clusters.eks, other_subnet, clusters.create
    create("ready")
    clusters.add_group("ready")
    held = {"clusterName": "ready", "principalArn": clusters.role}
    pods = {"clusterName": "ready", "namespace": "a", "serviceAccount": "b"}
    pods["roleArn"] = clusters.role
    eks.create_access_entry(**held)
    eks.create_pod_identity_association(**pods)
    in_use, invalid, missing = "ResourceInUse", "InvalidParameter", "ResourceNotFound"

    refused(in_use, "already exists", create, "ready")
    refused(invalid, r"unsupported .* 1\.99", create, "x", version="1.99")
    for words, network in (
        ("two different AZs", {"subnetIds": clusters.subnets[:1]}),
        ("to the same VPC", {"subnetIds": [*clusters.subnets, subnet]}),
        ("sg-0123456789abcdef0", {"securityGroupIds": ["sg-0123456789abcdef0"]}),
    ):
        refused(invalid, words, create, "x", network=network)
    with clusters.aws.lifecycles_held():
        create("early", ready=False)
        refused("InvalidRequest", "not in ACTIVE status", clusters.add_group, "early")
    refused(in_use, "already exists", clusters.add_group, "ready")
    nowhere = {"clusterName": "ready", "nodegroupName": "other"}
    refused(missing, "No node group found", eks.describe_nodegroup, **nowhere)
    for words, elsewhere in (("does not exist", "subnet-0"), ("belong to cluster's vpc", subnet)):
        fields = {"nodegroupName": "x", "subnets": [elsewhere]}
        refused(invalid, words, clusters.add_group, "ready", **fields)
    refused(in_use, "nodegroups attached", eks.delete_cluster, name="ready")
    addon = {"clusterName": "ready", "addonName": "nvidia-plugin"}
    refused(invalid, "not supported", eks.create_addon, **addon)
    refused(missing, "No addon: nvidia-plugin", eks.describe_addon, **addon)
    refused(in_use, "already in use", eks.create_access_entry, **held)
    refused(in_use, "already exists", eks.create_pod_identity_association, **pods)


def test_node_group_has_instances_until_it_is_deleted_and_frees_its_cluster(
    clusters: Clusters, observer: Observer
) -> None:
    clusters.create("nodes")
    clusters.add_group("nodes", labels={"pool": "gpu"}, taints=[TAINT], tags={"a": "b"})

    where = {"clusterName": "nodes", "nodegroupName": "gpu"}
    active = clusters.eks.describe_nodegroup(**where)["nodegroup"]
    there = clusters.instances("nodes")
    assert (active["status"], active["tags"], len(there)) == ("ACTIVE", {"a": "b"}, 2)
    assert active["resources"]["autoScalingGroups"][0]["name"].startswith("eks-gpu-")
    assert observer.seen[-1] == (
        "node_group_active",
        {
            "cluster": "nodes",
            "name": "gpu",
            "instance_type": "p4d.24xlarge",
            "instance_ids": [each["InstanceId"] for each in there],
            "zone": "us-west-2a",
            "labels": {"pool": "gpu", "eks.amazonaws.com/capacityType": "ON_DEMAND"},
            "taints": [TAINT],
        },
    )

    clusters.eks.delete_nodegroup(**where)
    clusters.aws.finish_lifecycles()
    assert clusters.instances("nodes") == []
    refused_interface = there[0]["NetworkInterfaces"][0]["NetworkInterfaceId"]
    with pytest.raises(ClientError, match=r"InvalidNetworkInterfaceID\.NotFound"):
        clusters.aws.client("ec2").describe_network_interfaces(
            NetworkInterfaceIds=[refused_interface]
        )
    assert clusters.eks.delete_cluster(name="nodes")["cluster"]["status"] == "DELETING"
    clusters.aws.finish_lifecycles()
    assert observer.seen[-2:] == [
        ("node_group_deleted", {"cluster": "nodes", "name": "gpu"}),
        ("cluster_deleted", {"name": "nodes"}),
    ]


def test_instance_that_its_auto_scaling_group_terminates_is_replaced_once(
    clusters: Clusters, observer: Observer
) -> None:
    clusters.create("replaced")
    clusters.add_group("replaced")
    bad, good = [each["InstanceId"] for each in clusters.instances("replaced")]
    scaling = clusters.aws.client("autoscaling")
    end = {"InstanceId": bad, "ShouldDecrementDesiredCapacity": False}

    with clusters.aws.lifecycles_held():
        for _ in range(2):
            answer = scaling.terminate_instance_in_auto_scaling_group(**end)
            assert answer["Activity"]["Description"] == f"Terminating EC2 instance: {bad}"
    clusters.aws.finish_lifecycles()

    there = [each["InstanceId"] for each in clusters.instances("replaced")]
    seen = [fields["instance_ids"] for name, fields in observer.seen if name == "node_group_active"]
    assert (len(there), good in there, bad in there) == (2, True, False)
    assert (seen[-2], sorted(seen[-1])) == ([good], sorted(there))
    with pytest.raises(ClientError, match="No managed instance found"):
        scaling.terminate_instance_in_auto_scaling_group(**end)


def test_cluster_versions_have_one_default_in_standard_support(clusters: Clusters) -> None:
    describe = clusters.eks.describe_cluster_versions
    versions = describe()["clusterVersions"]
    (default,) = [each for each in versions if each["defaultVersion"]]

    assert default["versionStatus"] == "STANDARD_SUPPORT"
    assert describe(maxResults=1)["clusterVersions"] == versions[:1]
    extended = [each["clusterVersion"] for each in versions if "EXT" in each["versionStatus"]]
    assert extended == ["1.33", "1.32", "1.31"]


def test_tagging_api_lists_while_a_node_group_starts_instances(
    clusters: Clusters, trains: str
) -> None:
    listed = ec2_backends[clusters.aws.account_id]["us-west-2"].iter_tagged_resources()
    next(listed)

    instances = clusters.aws.client("ec2").run_instances(
        ImageId="ami-12c6146b", MinCount=1, MaxCount=1, SubnetId=clusters.subnets[0]
    )["Instances"]

    assert instances[0]["InstanceId"] not in [each.arn.rsplit("/")[-1] for each in listed]


def test_eks_makes_a_group_of_its_own_and_leaves_it_where_something_is_in_it(
    clusters: Clusters, observer: Observer
) -> None:
    ec2, groups = clusters.aws.client("ec2"), {}
    for name in ("clean", "littered"):
        clusters.create(name)
        config = clusters.eks.describe_cluster(name=name)["cluster"]["resourcesVpcConfig"]
        groups[name] = config["clusterSecurityGroupId"]
    ec2.create_network_interface(SubnetId=clusters.subnets[0], Groups=[groups["littered"]])

    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=groups["clean"])  # the control plane is in it
    for name in groups:
        clusters.eks.delete_cluster(name=name)
    clusters.aws.finish_lifecycles()

    left = ec2.describe_security_groups(
        Filters=[{"Name": "tag:aws:eks:cluster-name", "Values": list(groups)}]
    )["SecurityGroups"]
    assert [group["GroupId"] for group in left] == [groups["littered"]]
    assert left[0]["GroupName"].startswith("eks-cluster-sg-littered-")
    assert observer.seen[-1] == ("cluster_deleted", {"name": "littered"})


# -- launch templates -------------------------------------------------------------------------


@pytest.fixture
def template(aws: LocalAws) -> Iterator[Any]:
    """Makes the launch template of the test."""
    ec2 = aws.client("ec2")

    def make(**data: Any) -> dict[str, str]:
        ec2.create_launch_template(LaunchTemplateName="ours", LaunchTemplateData=data)
        return {"name": "ours", "version": "$Latest"}

    yield make
    ec2.delete_launch_template(LaunchTemplateName="ours")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"InstanceType": "p4d.24xlarge"}, "Cannot specify instance types in launch template"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "'sg-0123456789abcdef0' does not exist"),
        ({"Placement": {"GroupName": "nowhere"}}, "Placement Group 'nowhere' is unknown"),
        ({"NetworkInterfaces": [EFA, {**EFA, "NetworkCardIndex": 4}]}, "card index 4 is not"),
        ({"NetworkInterfaces": [EFA, EFA]}, "given twice"),
        ({"NetworkInterfaces": [EFA, {**EFA, "DeviceIndex": 1}]}, "Only one EFA"),
        ({"NetworkInterfaces": [{**EFA, "NetworkCardIndex": 1}]}, "A primary network interface"),
        ({"NetworkInterfaces": [{**EFA, "DeviceIndex": 15}]}, "Device index 15 exceeds"),
        ({"NetworkInterfaces": [{**EFA, "InterfaceType": "efa-only"}]}, "cannot be the primary"),
    ],
)
def test_node_group_with_a_wrong_template_is_refused(
    clusters: Clusters, trains: str, template: Any, data: dict[str, Any], words: str
) -> None:
    made = template(**data)

    refused("InvalidRequest", words, clusters.add_group, trains, launchTemplate=made)

    assert clusters.eks.list_nodegroups(clusterName=trains)["nodegroups"] == []


def test_node_group_with_a_template_of_another_type_is_refused(
    clusters: Clusters, trains: str, template: Any
) -> None:
    efa = template(NetworkInterfaces=[EFA])
    add = clusters.add_group

    words = "efa is not supported on network card 0 of the instance"
    types = ["m5.2xlarge"]
    refused("InvalidRequest", words, add, trains, launchTemplate=efa, instanceTypes=types)
    words = "name or ID nothing, does not exist"
    refused("InvalidRequest", words, add, trains, launchTemplate={"name": "nothing"})


def test_instances_are_launched_as_their_template_says(
    clusters: Clusters, trains: str, template: Any
) -> None:
    ec2, mine = clusters.aws.client("ec2"), {"Key": "owner", "Value": "us"}
    config = clusters.eks.describe_cluster(name=trains)["cluster"]["resourcesVpcConfig"]
    own = config["clusterSecurityGroupId"]
    ec2.create_placement_group(GroupName="near", Strategy="cluster")
    made = template(
        NetworkInterfaces=[
            {**EFA, "NetworkCardIndex": card, "DeviceIndex": int(card > 0), "Groups": [own]}
            for card in range(4)
        ],
        Placement={"GroupName": "near"},
        BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 500}}],
        TagSpecifications=[
            {"ResourceType": kind, "Tags": [mine]}
            for kind in ("instance", "volume", "network-interface")
        ],
    )
    clusters.add_group(trains, launchTemplate=made, tags={"only-of": "the group"})

    by_tag = [{"Name": "tag:owner", "Values": ["us"]}]
    found = clusters.instances(trains)
    interfaces = ec2.describe_network_interfaces(Filters=by_tag)["NetworkInterfaces"]
    assert {each["Placement"]["GroupName"] for each in found} == {"near"}
    keys = {tag["Key"] for each in found for tag in each["Tags"]}
    assert ("owner" in keys, "only-of" in keys) == (True, False)
    sizes = [volume["Size"] for volume in ec2.describe_volumes(Filters=by_tag)["Volumes"]]
    assert sizes == [500, 500]
    assert [each["InterfaceType"] for each in interfaces] == ["efa"] * 2 * 4
    assert {group["GroupId"] for each in interfaces for group in each["Groups"]} == {own}

    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.InUse"):
        ec2.delete_placement_group(GroupName="near")
    clusters.eks.delete_nodegroup(clusterName=trains, nodegroupName="gpu")
    clusters.aws.finish_lifecycles()

    ec2.delete_placement_group(GroupName="near")
    assert ec2.describe_network_interfaces(Filters=by_tag)["NetworkInterfaces"] == []


def test_every_type_of_the_catalogue_has_the_cards_that_the_product_asks_for() -> None:
    settings = Settings(region="us-west-2", table_name="t", bus_name="b")
    asked: dict[str, Any] = {}

    class Recorder:
        def create_launch_template(self, *, LaunchTemplateData: Any, **_: Any) -> None:  # noqa: N803
            asked["data"] = LaunchTemplateData

    refused = {}
    for name, instance in CATALOGUE.items():
        LaunchTemplates(settings, Recorder()).ensure_training(  # type: ignore[arg-type]
            "c-1", instance=instance, security_group_ids=["sg-1"]
        )
        request = {"nodegroupName": "training", "instanceTypes": [name]}
        try:
            launch_of(request, asked["data"], default_group_id="sg-0")
        except ApiError as error:
            refused[name] = error.message

    assert refused == {}
    assert CATALOGUE.keys() - INSTANCE_TYPES.keys() == {"p3.8xlarge"}
