"""The local FSx for Lustre with its data repository associations, and EC2 where both are used."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stationmaster.aws.launch_templates import LaunchTemplates
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.names import launch_template_name
from stationmaster.local.aws import AwsObserver, Deployment, LocalAws
from stationmaster.local.aws.emulation import current
from stationmaster.local.aws.observer import ImportedFile
from stationmaster.settings import Settings

BUCKET = "research-data"
TAGS = [{"Key": "stationmaster:cluster-id", "Value": "c-1"}]


@pytest.fixture
def ec2(aws: LocalAws, deployed: Deployment) -> Any:
    return aws.client("ec2")


@pytest.fixture(scope="module")
def bucket(aws: LocalAws) -> str:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.put_object(Bucket=BUCKET, Key="a/one.txt", Body=b"1")
    return BUCKET


@pytest.fixture
def fsx(aws: LocalAws, deployed: Deployment, bucket: str) -> Iterator[Any]:
    yield aws.client("fsx")
    aws.faults.clear()


def create(fsx: Any, deployed: Deployment, **fields: Any) -> str:
    """Create a file system of 1.2 TiB; its id."""
    lustre = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250}
    made = fsx.create_file_system(
        **{
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": "2.15",
            "StorageCapacity": 1200,
            "SubnetIds": deployed.subnet_ids[:1],
            "LustreConfiguration": lustre,
            **fields,
        }
    )
    return str(made["FileSystem"]["FileSystemId"])


def link(fsx: Any, file_system_id: str, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = fsx.create_data_repository_association(
        **{
            "FileSystemId": file_system_id,
            "FileSystemPath": "/linked",
            "DataRepositoryPath": f"s3://{BUCKET}/a/",
            "BatchImportMetaDataOnCreate": True,
            "Tags": TAGS,
            **fields,
        }
    )["Association"]
    return answer


def links_of(fsx: Any, file_system_id: str) -> list[dict[str, Any]]:
    filters = [{"Name": "file-system-id", "Values": [file_system_id]}]
    found = fsx.describe_data_repository_associations(Filters=filters)
    return list(found["Associations"])


def lustre(kind: str, mbps: int) -> dict[str, Any]:
    return {"LustreConfiguration": {"DeploymentType": kind, "PerUnitStorageThroughput": mbps}}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"StorageCapacity": 1000}, "BadRequest"),
        ({"StorageCapacity": 3600}, "BadRequest"),
        (lustre("PERSISTENT_2", 200), "InvalidPerUnitStorageThroughput"),
        ({"FileSystemType": "WINDOWS"}, "BadRequest"),
        (lustre("SCRATCH_1", 200), "BadRequest"),
        (lustre("SCRATCH_2", 200), "InvalidPerUnitStorageThroughput"),
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


def test_token_returns_the_same_one(fsx: Any, aws: LocalAws, deployed: Deployment) -> None:
    made = create(fsx, deployed, ClientRequestToken="run-9")

    assert create(fsx, deployed, ClientRequestToken="run-9") == made
    with pytest.raises(fsx.exceptions.IncompatibleParameterError):
        create(fsx, deployed, ClientRequestToken="run-9", StorageCapacity=2400)

    with aws.lifecycles_held():
        first = link(fsx, made, ClientRequestToken="run-1")
        assert link(fsx, made, ClientRequestToken="run-1") == first
    with pytest.raises(fsx.exceptions.IncompatibleParameterError):
        link(fsx, made, ClientRequestToken="run-1", FileSystemPath="/elsewhere")


def test_file_system_that_finds_no_room_here_fails_with_the_reason(
    fsx: Any, aws: LocalAws, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(AwsObserver):
        def file_system_available(self, *, file_system_id: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", f"/state/{file_system_id}")

    monkeypatch.setattr(current(), "observer", Full())
    identity = create(fsx, deployed)
    aws.finish_lifecycles()

    (described,) = fsx.describe_file_systems(FileSystemIds=[identity])["FileSystems"]
    assert described["Lifecycle"] == "FAILED"
    assert described["FailureDetails"]["Message"] == (
        f"The file system could not be created: /state/{identity}: no space left on device"
    )


# -- associations -----------------------------------------------------------------------------


def test_association_is_available_and_goes_with_its_file_system_or_by_itself(
    fsx: Any, aws: LocalAws, deployed: Deployment
) -> None:
    identity = create(fsx, deployed)
    with aws.lifecycles_held():
        made = link(fsx, identity, DataRepositoryPath=f"s3://{BUCKET}/a")
        other = link(fsx, identity, FileSystemPath="/b", DataRepositoryPath=f"s3://{BUCKET}/b")
        with pytest.raises(fsx.exceptions.BadRequest):
            fsx.delete_data_repository_association(AssociationId=made["AssociationId"])
    aws.finish_lifecycles()

    assert (made["Lifecycle"], made["DataRepositoryPath"]) == ("CREATING", f"s3://{BUCKET}/a/")
    found = links_of(fsx, identity)
    assert [(each["Lifecycle"], each["Tags"]) for each in found] == [("AVAILABLE", TAGS)] * 2
    tagged = aws.client("resourcegroupstaggingapi").get_resources(
        ResourceTypeFilters=["fsx:association"]
    )["ResourceTagMappingList"]
    assert {each["ResourceARN"] for each in tagged} >= {made["ResourceARN"], other["ResourceARN"]}

    answer = fsx.delete_data_repository_association(AssociationId=other["AssociationId"])
    aws.finish_lifecycles()
    assert (answer["Lifecycle"], answer["DeleteDataInFileSystem"]) == ("DELETING", False)
    assert [each["AssociationId"] for each in links_of(fsx, identity)] == [made["AssociationId"]]

    fsx.delete_file_system(FileSystemId=identity)
    aws.finish_lifecycles()
    with pytest.raises(fsx.exceptions.FileSystemNotFound):
        fsx.describe_file_systems(FileSystemIds=[identity])
    with pytest.raises(fsx.exceptions.DataRepositoryAssociationNotFound):
        fsx.describe_data_repository_associations(AssociationIds=[made["AssociationId"]])


def test_objects_are_imported_while_their_file_system_stays(
    fsx: Any, aws: LocalAws, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = aws.client("s3")
    for key in ("c/", "c/d/two", "c/one", "c/gone", "other"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    s3.delete_object(Bucket=BUCKET, Key="c/gone")
    imported: list[ImportedFile] = []

    class Observer(AwsObserver):
        def files_imported(
            self, *, file_system_id: str, directory: str, files: Iterable[ImportedFile]
        ) -> None:
            assert (file_system_id, directory) == (identity, "/linked")
            with pytest.raises(ClientError, match="data repository task that is executing"):
                fsx.delete_file_system(FileSystemId=identity)
            imported.extend(files)

    monkeypatch.setattr(current(), "observer", Observer())
    identity = create(fsx, deployed)
    link(fsx, identity, DataRepositoryPath=f"s3://{BUCKET}/c/")

    aws.finish_lifecycles()

    assert imported == [
        ImportedFile("d/two", b"c/d/two"),
        ImportedFile("one", b"c/one"),
    ]
    assert fsx.delete_file_system(FileSystemId=identity)["Lifecycle"] == "DELETING"


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"DataRepositoryPath": "s3://no-such-bucket/a"}, "BadRequest", "unable to validate"),
        ({"FileSystemPath": "/taken/below"}, "BadRequest", "FileSystemPath .* overlaps"),
        ({"DataRepositoryPath": f"s3://{BUCKET}/b/c"}, "BadRequest", "DataRepositoryPath .*overl"),
        ({"FileSystemId": "fs-0123456789abcdef0"}, "FileSystemNotFound", "does not exist"),
        ({"others": 7}, "BadRequest", "at most 8"),
    ],
)
def test_association_that_fsx_would_refuse_is_refused(
    fsx: Any, deployed: Deployment, fields: dict[str, Any], error: str, said: str
) -> None:
    identity, fields = create(fsx, deployed), dict(fields)
    link(fsx, identity, FileSystemPath="/taken", DataRepositoryPath=f"s3://{BUCKET}/b/")
    for number in range(fields.pop("others", 0)):
        place = f"s3://{BUCKET}/{number}/"
        link(fsx, identity, FileSystemPath=f"/{number}", DataRepositoryPath=place)

    with pytest.raises(ClientError, match=said) as refused:
        link(fsx, identity, **fields)

    assert refused.value.response["Error"]["Code"] == error


# -- EC2 --------------------------------------------------------------------------------------


def test_placement_group_that_is_there_or_not_is_refused(ec2: Any) -> None:
    ec2.create_placement_group(GroupName="g", Strategy="cluster")
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Duplicate"):
        ec2.create_placement_group(GroupName="g", Strategy="cluster")
    ec2.delete_placement_group(GroupName="g")
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Unknown"):
        ec2.delete_placement_group(GroupName="g")


def test_what_something_else_is_in_or_names_cannot_be_deleted(
    fsx: Any, aws: LocalAws, ec2: Any, deployed: Deployment
) -> None:
    used, user, of_lustre = (
        ec2.create_security_group(GroupName=name, Description=name, VpcId=deployed.vpc_id)[
            "GroupId"
        ]
        for name in ("used", "user", "lustre")
    )
    for group_id in (user, used):  # a rule of its own does not hold a group
        ec2.authorize_security_group_ingress(
            GroupId=group_id,
            IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": used}]}],
        )
    file_system = create(fsx, deployed, SecurityGroupIds=[of_lustre])
    aws.finish_lifecycles()

    for group_id in (used, of_lustre):
        with pytest.raises(ClientError, match="DependencyViolation"):
            ec2.delete_security_group(GroupId=group_id)
    fsx.delete_file_system(FileSystemId=file_system)
    aws.finish_lifecycles()

    for group_id in (user, used, of_lustre):
        ec2.delete_security_group(GroupId=group_id)


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

    data = []
    for name in (launch_template_name(run_id), launch_template_name(run_id, "system")):
        (version,) = ec2.describe_launch_template_versions(LaunchTemplateName=name)[
            "LaunchTemplateVersions"
        ]
        data.append(version["LaunchTemplateData"])
        options, (disk,) = data[-1]["MetadataOptions"], data[-1]["BlockDeviceMappings"]
        assert (options["HttpPutResponseHopLimit"], options["HttpTokens"]) == (1, "required")
        assert disk["Ebs"]["Encrypted"] is True
    assert [
        (nic["NetworkCardIndex"], nic["DeviceIndex"], nic["InterfaceType"])
        for nic in data[0].get("NetworkInterfaces", [])
    ] == interfaces
    both = templates.left(run_id)
    for left in both:
        templates.release(run_id, left.id)
    assert len(both) == 2
    assert templates.left(run_id) == []


@pytest.mark.parametrize(("num_gpus", "described"), [(None, 8), (8, 8), (2, 2), (0, 0)])
def test_instance_types_have_no_more_gpus_than_the_machine(
    ec2: Any, monkeypatch: pytest.MonkeyPatch, num_gpus: int | None, described: int
) -> None:
    monkeypatch.setattr(current(), "num_gpus", num_gpus)

    types = ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge", "m5.2xlarge"])

    found = {each["InstanceType"]: each.get("GpuInfo") for each in types["InstanceTypes"]}
    assert found["m5.2xlarge"] is None
    gpus = found["p4d.24xlarge"]
    assert (sum(gpu["Count"] for gpu in gpus["Gpus"]) if gpus else 0) == described
