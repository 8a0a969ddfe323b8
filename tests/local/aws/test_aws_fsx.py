"""The local FSx for Lustre and EC2: lifecycles, validation, dependencies, tags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stationmaster.aws.launch_templates import LaunchTemplates
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.names import launch_template_name
from stationmaster.local.aws import Deployment, LocalAws
from stationmaster.local.aws.emulation import current
from stationmaster.settings import Settings
from tests.support.aws_fixtures import until

TAGS = [{"Key": "stationmaster:run-id", "Value": "run-9"}]


@pytest.fixture
def fsx(aws: LocalAws, deployed: Deployment) -> Iterator[Any]:
    yield aws.client("fsx")
    aws.faults.clear()


@pytest.fixture
def ec2(aws: LocalAws, deployed: Deployment) -> Any:
    return aws.client("ec2")


def create(fsx: Any, deployed: Deployment, **fields: Any) -> dict[str, Any]:
    """Create a file system of 1.2 TiB."""
    answer: dict[str, Any] = fsx.create_file_system(
        **{
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": "2.15",
            "StorageCapacity": 1200,
            "SubnetIds": deployed.subnet_ids[:1],
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_2",
                "PerUnitStorageThroughput": 250,
            },
            "Tags": TAGS,
            **fields,
        }
    )["FileSystem"]
    return answer


def reaches(fsx: Any, identity: str, lifecycle: str) -> dict[str, Any]:
    """Wait for a lifecycle and return the file system."""

    def found() -> dict[str, Any] | None:
        described: dict[str, Any] = fsx.describe_file_systems(FileSystemIds=[identity])[
            "FileSystems"
        ][0]
        return described if described["Lifecycle"] == lifecycle else None

    described: dict[str, Any] = until(found)
    return described


def is_gone(fsx: Any, identity: str) -> bool:
    """Return whether a file system no longer exists."""
    try:
        fsx.describe_file_systems(FileSystemIds=[identity])
    except fsx.exceptions.FileSystemNotFound:
        return True
    return False


def group(ec2: Any, deployed: Deployment, name: str) -> str:
    """Create a security group."""
    answer = ec2.create_security_group(
        GroupName=name,
        Description="test",
        VpcId=deployed.vpc_id,
        TagSpecifications=[{"ResourceType": "security-group", "Tags": TAGS}],
    )
    return str(answer["GroupId"])


# -- FSx ----------------------------------------------------------------------


def test_file_system_token_returns_the_same_one(fsx: Any, deployed: Deployment) -> None:
    first = create(fsx, deployed, ClientRequestToken="run-9")
    second = create(fsx, deployed, ClientRequestToken="run-9")

    assert first["FileSystemId"] == second["FileSystemId"]
    with pytest.raises(fsx.exceptions.IncompatibleParameterError):
        create(fsx, deployed, ClientRequestToken="run-9", StorageCapacity=2400)


def lustre(kind: str = "SCRATCH_2", mbps: int = 0, **fields: Any) -> dict[str, Any]:
    throughput = {"PerUnitStorageThroughput": mbps} if mbps else {}
    return {"LustreConfiguration": {"DeploymentType": kind, **throughput, **fields}}


KEY = {"KmsKeyId": "arn:aws:kms:us-west-2:123456789012:key/k"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"StorageCapacity": 1000}, "BadRequest"),
        ({"StorageCapacity": 3600}, "BadRequest"),
        (lustre("PERSISTENT_2", 200), "InvalidPerUnitStorageThroughput"),
        ({"StorageCapacity": 4800} | lustre("PERSISTENT_2", 500, EfaEnabled=True), "BadRequest"),
        ({"FileSystemType": "WINDOWS"}, "BadRequest"),
        (lustre(mbps=200), "InvalidPerUnitStorageThroughput"),
        (lustre(AutomaticBackupRetentionDays=1), "BadRequest"),
        (lustre() | KEY, "BadRequest"),
        ({"SubnetIds": ["subnet-0123456789abcdef0"]}, "InvalidNetworkSettings"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidNetworkSettings"),
    ],
)
def test_file_system_that_the_service_refuses_is_refused(
    fsx: Any, deployed: Deployment, fields: dict[str, Any], error: str
) -> None:
    before = len(fsx.describe_file_systems()["FileSystems"])

    with pytest.raises(ClientError) as raised:
        create(fsx, deployed, **fields)

    assert raised.value.response["Error"]["Code"] == error
    assert len(fsx.describe_file_systems()["FileSystems"]) == before


def test_file_systems_are_listed_in_pages(fsx: Any, deployed: Deployment) -> None:
    made = {create(fsx, deployed)["FileSystemId"] for _ in range(3)}

    pages = list(
        fsx.get_paginator("describe_file_systems").paginate(PaginationConfig={"PageSize": 2})
    )

    listed = [each["FileSystemId"] for page in pages for each in page["FileSystems"]]
    assert len(pages) > 1
    assert made <= set(listed)
    assert len(listed) == len(set(listed))


# -- EC2 ----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create_placement_group", "delete_placement_group"])
def test_placement_group_that_is_there_or_not_is_refused(ec2: Any, call: str) -> None:
    ec2.create_placement_group(GroupName=call, Strategy="cluster")
    if call == "delete_placement_group":
        ec2.delete_placement_group(GroupName=call)

    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.(Duplicate|Unknown)"):
        getattr(ec2, call)(GroupName=call, **({"Strategy": "cluster"} if "create" in call else {}))


def test_security_group_that_another_one_references_is_in_use(
    ec2: Any, deployed: Deployment
) -> None:
    used, user = group(ec2, deployed, "used"), group(ec2, deployed, "user")
    for group_id in (user, used):  # a rule of its own does not hold a group
        ec2.authorize_security_group_ingress(
            GroupId=group_id,
            IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": used}]}],
        )

    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=used)
    ec2.delete_security_group(GroupId=user)
    ec2.delete_security_group(GroupId=used)


def test_file_system_holds_its_group_and_subnet_until_it_is_gone(
    fsx: Any, ec2: Any, deployed: Deployment
) -> None:
    subnet = ec2.create_subnet(VpcId=deployed.vpc_id, CidrBlock="10.42.224.0/24")["Subnet"][
        "SubnetId"
    ]
    identity = group(ec2, deployed, "lustre")
    file_system = create(fsx, deployed, SubnetIds=[subnet], SecurityGroupIds=[identity])[
        "FileSystemId"
    ]
    reaches(fsx, file_system, "AVAILABLE")

    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=identity)
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_subnet(SubnetId=subnet)
    fsx.delete_file_system(FileSystemId=file_system)
    until(lambda: is_gone(fsx, file_system))

    ec2.delete_security_group(GroupId=identity)
    ec2.delete_subnet(SubnetId=subnet)


@pytest.mark.parametrize(
    ("instance", "interfaces"),
    [
        ("p4d.24xlarge", [(0, 0, "efa"), (1, 1, "efa"), (2, 1, "efa"), (3, 1, "efa")]),
        (
            "p5.48xlarge",
            [
                *((0, 0, "interface"), (0, 1, "efa-only")),
                *((card, 0, "efa-only") for card in range(1, 32)),
            ],
        ),
        ("p5.4xlarge", [(0, 0, "efa")]),
        (
            "p6-b300.48xlarge",
            [(0, 0, "interface"), *((card, 0, "efa-only") for card in range(1, 17))],
        ),
        ("m5.2xlarge", []),
    ],
)
def test_launch_template_has_the_interfaces_that_the_cards_take(
    ec2: Any, deployed: Deployment, instance: str, interfaces: list[tuple[int, int, str]]
) -> None:
    run_id = f"template-{instance.replace('.', '-')}"
    settings = Settings(region="eu-north-1", table_name="runs", bus_name="events")
    templates = LaunchTemplates(settings, ec2)

    templates.ensure_training(run_id, instance=get_instance(instance), security_group_ids=["sg-1"])
    templates.ensure_system(run_id, security_group_ids=["sg-1"])

    name, system = launch_template_name(run_id), launch_template_name(run_id, "system")
    by_tag = ec2.describe_launch_templates(
        Filters=[{"Name": "tag:stationmaster:cluster-id", "Values": [run_id]}]
    )["LaunchTemplates"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateName=name)
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]

    assert {template["LaunchTemplateName"] for template in by_tag} == {name, system}
    assert [
        (nic["NetworkCardIndex"], nic["DeviceIndex"], nic["InterfaceType"])
        for nic in data.get("NetworkInterfaces", [])
    ] == interfaces
    for template in (name, system):
        (version,) = ec2.describe_launch_template_versions(LaunchTemplateName=template)[
            "LaunchTemplateVersions"
        ]
        options = version["LaunchTemplateData"]["MetadataOptions"]
        assert (options["HttpPutResponseHopLimit"], options["HttpTokens"]) == (1, "required")
        (disk,) = version["LaunchTemplateData"]["BlockDeviceMappings"]
        assert disk["Ebs"]["Encrypted"] is True
    for left in templates.left(run_id):
        templates.release(run_id, left.id)
    assert templates.left(run_id) == []


@pytest.mark.parametrize(("num_gpus", "described"), [(None, 8), (8, 8), (2, 2), (0, 0)])
def test_instance_types_have_no_more_gpus_than_the_machine(
    aws: LocalAws, ec2: Any, monkeypatch: pytest.MonkeyPatch, num_gpus: int | None, described: int
) -> None:
    monkeypatch.setattr(current(), "num_gpus", num_gpus)

    types = ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge", "m5.2xlarge"])

    found = {each["InstanceType"]: each.get("GpuInfo") for each in types["InstanceTypes"]}
    assert found["m5.2xlarge"] is None
    gpus = found["p4d.24xlarge"]
    assert (sum(gpu["Count"] for gpu in gpus["Gpus"]) if gpus else 0) == described
