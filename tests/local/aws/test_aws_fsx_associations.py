"""The local FSx data repository associations: lifecycle, validation, and what they import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stationmaster.local.aws import Deployment, LocalAws
from stationmaster.local.aws.emulation import current
from stationmaster.local.aws.observer import AwsObserver, ImportedFile
from tests.support.aws_fixtures import until

BUCKET = "research-data"
TAGS = [{"Key": "stationmaster:cluster-id", "Value": "c-1"}]


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


def file_system(fsx: Any, deployed: Deployment, **fields: Any) -> str:
    made = fsx.create_file_system(
        **{
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": "2.15",
            "StorageCapacity": 1200,
            "SubnetIds": deployed.subnet_ids[:1],
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_2",
                "PerUnitStorageThroughput": 250,
            },
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


def described(fsx: Any, file_system_id: str) -> list[dict[str, Any]]:
    filters = [{"Name": "file-system-id", "Values": [file_system_id]}]
    found: list[dict[str, Any]] = fsx.describe_data_repository_associations(Filters=filters)[
        "Associations"
    ]
    return found


def is_gone(fsx: Any, file_system_id: str) -> bool:
    try:
        fsx.describe_file_systems(FileSystemIds=[file_system_id])
    except fsx.exceptions.FileSystemNotFound:
        return True
    return False


def test_association_is_creating_then_available_and_goes_with_its_file_system(
    fsx: Any, aws: LocalAws, deployed: Deployment
) -> None:
    identity = file_system(fsx, deployed)
    made = link(fsx, identity, DataRepositoryPath=f"s3://{BUCKET}/a")

    assert (made["Lifecycle"], made["DataRepositoryPath"]) == ("CREATING", f"s3://{BUCKET}/a/")
    aws.finish_lifecycles()
    (found,) = described(fsx, identity)
    assert found["Lifecycle"] == "AVAILABLE"
    assert found["Tags"] == TAGS
    tagged = aws.client("resourcegroupstaggingapi").get_resources(
        ResourceTypeFilters=["fsx:association"]
    )["ResourceTagMappingList"]
    assert [each["ResourceARN"] for each in tagged] == [made["ResourceARN"]]

    fsx.delete_file_system(FileSystemId=identity)
    until(lambda: is_gone(fsx, identity))

    with pytest.raises(fsx.exceptions.DataRepositoryAssociationNotFound):
        fsx.describe_data_repository_associations(AssociationIds=[made["AssociationId"]])


def test_objects_are_imported_once_it_is_available(
    fsx: Any, aws: LocalAws, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = aws.client("s3")
    s3.put_object(
        Bucket=BUCKET, Key="c/d/two", Body=b"22", Metadata={"file-permissions": "0100640"}
    )
    for key in ("c/", "c/one", "c/gone", "other"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    s3.delete_object(Bucket=BUCKET, Key="c/gone")
    imported: list[ImportedFile] = []

    class Observer(AwsObserver):
        def files_imported(
            self, *, file_system_id: str, directory: str, files: Iterable[ImportedFile]
        ) -> None:
            assert (file_system_id, directory) == (identity, "/linked")
            imported.extend(files)

    monkeypatch.setattr(current(), "observer", Observer())
    identity = file_system(fsx, deployed)
    link(fsx, identity, DataRepositoryPath=f"s3://{BUCKET}/c/")

    aws.finish_lifecycles()

    assert imported == [
        ImportedFile("d/two", b"22", 0o640),
        ImportedFile("one", b"c/one", 0o755),
    ]


def test_file_system_stays_while_it_imports(
    fsx: Any, aws: LocalAws, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    class Observer(AwsObserver):
        def files_imported(self, **_about: object) -> None:
            try:
                fsx.delete_file_system(FileSystemId=identity)
            except ClientError as error:
                refused.append(str(error))

    monkeypatch.setattr(current(), "observer", Observer())
    identity = file_system(fsx, deployed)
    link(fsx, identity)

    aws.finish_lifecycles()

    assert [text for text in refused if "data repository task that is executing" in text]
    assert fsx.delete_file_system(FileSystemId=identity)["Lifecycle"] == "DELETING"


def test_association_is_deleted_by_itself(fsx: Any, aws: LocalAws, deployed: Deployment) -> None:
    identity = file_system(fsx, deployed)
    with aws.lifecycles_held():
        made = link(fsx, identity)
        with pytest.raises(fsx.exceptions.BadRequest):
            fsx.delete_data_repository_association(AssociationId=made["AssociationId"])
    aws.finish_lifecycles()

    answer = fsx.delete_data_repository_association(AssociationId=made["AssociationId"])

    assert (answer["Lifecycle"], answer["DeleteDataInFileSystem"]) == ("DELETING", False)
    until(lambda: not described(fsx, identity))


def test_token_returns_the_same_one(fsx: Any, aws: LocalAws, deployed: Deployment) -> None:
    identity = file_system(fsx, deployed)
    with aws.lifecycles_held():
        first = link(fsx, identity, ClientRequestToken="run-1")

        assert link(fsx, identity, ClientRequestToken="run-1") == first
    with pytest.raises(fsx.exceptions.IncompatibleParameterError):
        link(fsx, identity, ClientRequestToken="run-1", FileSystemPath="/elsewhere")


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"DataRepositoryPath": "s3://no-such-bucket/a"}, "BadRequest", "unable to validate"),
        ({"FileSystemPath": "linked"}, "BadRequest", "does not begin with"),
        ({"FileSystemPath": "/taken/below"}, "BadRequest", "FileSystemPath .* overlaps"),
        ({"DataRepositoryPath": f"s3://{BUCKET}/b/c"}, "BadRequest", "DataRepositoryPath .*overl"),
        ({"FileSystemId": "fs-0123456789abcdef0"}, "FileSystemNotFound", "does not exist"),
        ({"FileSystemTypeVersion": "2.10"}, "UnsupportedOperation", "."),
        ({"others": 7}, "BadRequest", "at most 8"),
    ],
)
def test_association_that_fsx_would_refuse_is_refused(
    fsx: Any, deployed: Deployment, fields: dict[str, Any], error: str, said: str
) -> None:
    fields = dict(fields)
    version = {name: fields.pop(name) for name in ("FileSystemTypeVersion",) if name in fields}
    identity = file_system(fsx, deployed, **version)
    if not version:
        link(fsx, identity, FileSystemPath="/taken", DataRepositoryPath=f"s3://{BUCKET}/b/")
    for number in range(fields.pop("others", 0)):
        place = f"s3://{BUCKET}/{number}/"
        link(fsx, identity, FileSystemPath=f"/{number}", DataRepositoryPath=place)

    with pytest.raises(ClientError, match=said) as refused:
        link(fsx, identity, **fields)

    assert refused.value.response["Error"]["Code"] == error
