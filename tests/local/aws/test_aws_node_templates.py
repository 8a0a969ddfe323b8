"""The local EKS reads launch templates and networks: what it refuses, and what it launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from stationmaster.aws.launch_templates import LaunchTemplates
from stationmaster.domain.catalogue.instances import CATALOGUE
from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    InProcessRuntime,
    LocalAws,
)
from stationmaster.local.aws.services.eks_templates import launch_of
from stationmaster.local.aws.wire import ApiError
from stationmaster.settings import Settings
from tests.support.aws_fixtures import until

CLUSTER = "trains"
VOLUME = {"VolumeSize": 500, "DeleteOnTermination": True}
EFA = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "efa"}


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """An endpoint on which a creation takes a millisecond."""
    with LocalAws(
        state_dir=tmp_path_factory.mktemp("aws"),
        invoker=InProcessRuntime(),
        handlers=[],
        speed=600_000.0,
        kubernetes_endpoint="https://127.0.0.1:6443",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def made(aws: LocalAws) -> Deployment:
    return aws.deploy(DeploymentSpec(roles=["eks"], network="stationmaster"))


@pytest.fixture(scope="module")
def cluster(aws: LocalAws, made: Deployment) -> dict[str, Any]:
    """An active cluster."""
    eks = aws.client("eks")
    eks.create_cluster(
        name=CLUSTER,
        roleArn=made.role_arns["eks"],
        resourcesVpcConfig={"subnetIds": made.subnet_ids},
    )

    def active() -> dict[str, Any] | None:
        found: dict[str, Any] = eks.describe_cluster(name=CLUSTER)["cluster"]
        return found if found["status"] == "ACTIVE" else None

    return until(active)


@pytest.fixture(scope="module")
def other_network(aws: LocalAws) -> tuple[str, str]:
    """The subnet and the security group of another VPC."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="theirs", Description="theirs", VpcId=vpc)
    return subnet, group["GroupId"]


@pytest.fixture
def template(aws: LocalAws, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes the launch template of the test."""
    ec2 = aws.client("ec2")
    name = request.node.name.replace("[", "-").replace("]", "-")[:100]

    def make(**data: Any) -> str:
        ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
        return name

    yield make
    ec2.delete_launch_template(LaunchTemplateName=name)


def create_group(aws: LocalAws, made: Deployment, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = aws.client("eks").create_nodegroup(
        **{
            "clusterName": CLUSTER,
            "nodegroupName": "gpu",
            "subnets": made.subnet_ids[:1],
            "nodeRole": made.role_arns["eks"],
            "instanceTypes": ["p4d.24xlarge"],
            "scalingConfig": {"minSize": 2, "maxSize": 2, "desiredSize": 2},
            **fields,
        }
    )["nodegroup"]
    return answer


def test_cluster_with_an_unknown_group_is_refused(aws: LocalAws, made: Deployment) -> None:
    eks = aws.client("eks")
    network = {"subnetIds": made.subnet_ids, "securityGroupIds": ["sg-0123456789abcdef0"]}

    with pytest.raises(eks.exceptions.InvalidParameterException, match="sg-0123456789abcdef0"):
        eks.create_cluster(name="lost", roleArn=made.role_arns["eks"], resourcesVpcConfig=network)


def test_cluster_with_a_group_or_a_subnet_of_another_network_is_refused(
    aws: LocalAws, made: Deployment, other_network: tuple[str, str]
) -> None:
    eks, (subnet, group) = aws.client("eks"), other_network
    about = {"name": "foreign", "roleArn": made.role_arns["eks"]}

    with pytest.raises(eks.exceptions.InvalidParameterException, match="not in the same VPC"):
        eks.create_cluster(
            **about,
            resourcesVpcConfig={"subnetIds": made.subnet_ids, "securityGroupIds": [group]},
        )
    with pytest.raises(eks.exceptions.InvalidParameterException, match="to the same VPC"):
        eks.create_cluster(**about, resourcesVpcConfig={"subnetIds": [*made.subnet_ids, subnet]})


def test_eks_makes_a_group_of_its_own_and_leaves_it_where_something_is_in_it(
    aws: LocalAws, made: Deployment
) -> None:
    eks, ec2 = aws.client("eks"), aws.client("ec2")
    groups = {}
    for name in ("clean", "littered"):
        eks.create_cluster(
            name=name,
            roleArn=made.role_arns["eks"],
            resourcesVpcConfig={"subnetIds": made.subnet_ids},
        )
        aws.finish_lifecycles()
        config = eks.describe_cluster(name=name)["cluster"]["resourcesVpcConfig"]
        groups[name] = config["clusterSecurityGroupId"]
    interface = ec2.create_network_interface(
        SubnetId=made.subnet_ids[0], Groups=[groups["littered"]]
    )["NetworkInterface"]["NetworkInterfaceId"]

    with pytest.raises(ec2.exceptions.ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=groups["clean"])  # the control plane is in it
    for name in groups:
        eks.delete_cluster(name=name)
    aws.finish_lifecycles()

    left = ec2.describe_security_groups(
        Filters=[{"Name": "tag:aws:eks:cluster-name", "Values": list(groups)}]
    )["SecurityGroups"]
    assert [group["GroupId"] for group in left] == [groups["littered"]]
    assert left[0]["GroupName"].startswith("eks-cluster-sg-littered-")
    ec2.delete_network_interface(NetworkInterfaceId=interface)
    ec2.delete_security_group(GroupId=groups["littered"])


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"InstanceType": "p4d.24xlarge"}, "Cannot specify instance types in launch template"),
        ({"IamInstanceProfile": {"Name": "mine"}}, "should not specify an instance profile"),
        ({"NetworkInterfaces": [{**EFA, "SubnetId": "subnet-1"}]}, "a subnet of a network"),
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
    aws: LocalAws, made: Deployment, template: Any, data: dict[str, Any], words: str
) -> None:
    eks, name = aws.client("eks"), template(**data)

    with pytest.raises(eks.exceptions.InvalidRequestException, match=words):
        create_group(aws, made, launchTemplate={"name": name, "version": "$Latest"})

    assert eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"] == []


@pytest.mark.usefixtures("cluster")
def test_node_group_of_a_type_without_efa_or_of_another_network_is_refused(
    aws: LocalAws, made: Deployment, template: Any, other_network: tuple[str, str]
) -> None:
    eks, (subnet, group) = aws.client("eks"), other_network
    efa = {"name": template(NetworkInterfaces=[EFA]), "version": "$Latest"}
    refused = eks.exceptions.InvalidRequestException

    with pytest.raises(refused, match="efa is not supported on network card 0 of the instance"):
        create_group(aws, made, launchTemplate=efa, instanceTypes=["m5.2xlarge"])
    with pytest.raises(refused, match="name or ID nothing, does not exist"):
        create_group(aws, made, launchTemplate={"name": "nothing"})
    with pytest.raises(eks.exceptions.InvalidParameterException, match="belong to cluster's vpc"):
        create_group(aws, made, subnets=[subnet])
    ec2 = aws.client("ec2")
    ec2.create_launch_template_version(
        LaunchTemplateName=efa["name"], LaunchTemplateData={"SecurityGroupIds": [group]}
    )
    with pytest.raises(refused, match="belong to different networks"):
        create_group(aws, made, launchTemplate=efa)


def test_instances_are_launched_as_their_template_says(
    aws: LocalAws, made: Deployment, cluster: dict[str, Any], template: Any
) -> None:
    eks, ec2 = aws.client("eks"), aws.client("ec2")
    mine = {"Key": "owner", "Value": "us"}
    own = cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]
    ec2.create_placement_group(GroupName="near", Strategy="cluster")
    kinds = ("instance", "volume", "network-interface")
    cards = [
        {**EFA, "NetworkCardIndex": card, "DeviceIndex": int(card > 0), "Groups": [own]}
        for card in range(4)
    ]
    name = template(
        NetworkInterfaces=cards,
        Placement={"GroupName": "near"},
        BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": VOLUME}],
        TagSpecifications=[{"ResourceType": kind, "Tags": [mine]} for kind in kinds],
    )
    create_group(aws, made, launchTemplate={"name": name}, tags={"only-of": "the group"})
    aws.finish_lifecycles()

    by_tag = [{"Name": "tag:owner", "Values": ["us"]}]
    found = ec2.describe_instances(Filters=by_tag)["Reservations"][0]["Instances"]
    volumes = ec2.describe_volumes(Filters=by_tag)["Volumes"]
    interfaces = ec2.describe_network_interfaces(Filters=by_tag)["NetworkInterfaces"]
    assert len(found) == 2
    assert {each["Placement"]["GroupName"] for each in found} == {"near"}
    assert {"only-of"}.isdisjoint(tag["Key"] for each in found for tag in each["Tags"])
    assert [volume["Size"] for volume in volumes] == [500, 500]
    assert len(interfaces) == 2 * 4
    assert {each["InterfaceType"] for each in interfaces} == {"efa"}
    assert {group["GroupId"] for each in interfaces for group in each["Groups"]} == {own}

    with pytest.raises(ec2.exceptions.ClientError, match=r"InvalidPlacementGroup\.InUse"):
        ec2.delete_placement_group(GroupName="near")
    eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName="gpu")
    aws.finish_lifecycles()

    ec2.delete_placement_group(GroupName="near")
    assert ec2.describe_volumes(Filters=by_tag)["Volumes"] == []
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
            launch_of(request, "lt-1", asked["data"], default_group_id="sg-0")
        except ApiError as error:
            refused[name] = error.message

    assert refused == {}
    assert CATALOGUE.keys() - INSTANCE_TYPES.keys() == {"p3.8xlarge"}
