"""The local S3: checksums as S3 compares and states them, and operations told apart."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError

from stationmaster.local.aws import DeploymentSpec, LocalAws

BUCKET = "uploads"
FIRST = bytes(5 * 1024 * 1024)  # the smallest part that S3 takes, but for the last
LAST = b"tail"


def sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


@pytest.fixture(scope="module")
def s3(aws: LocalAws) -> Any:
    aws.deploy(DeploymentSpec(buckets=[BUCKET]))
    return aws.client("s3")


@pytest.fixture
def upload(s3: Any, request: pytest.FixtureRequest) -> dict[str, str]:
    """A multipart upload with two parts and their checksums."""
    key = request.node.originalname
    made = s3.create_multipart_upload(Bucket=BUCKET, Key=key, ChecksumAlgorithm="SHA256")
    place = {"Bucket": BUCKET, "Key": key, "UploadId": made["UploadId"]}
    for number, data in enumerate((FIRST, LAST), start=1):
        s3.upload_part(**place, PartNumber=number, Body=data, ChecksumSHA256=sha256(data))
    return place


def parts(s3: Any, place: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {name: part[name] for name in ("PartNumber", "ETag", "ChecksumSHA256")}
        for part in s3.list_parts(**place)["Parts"]
    ]


def test_body_is_kept_with_the_checksum_that_was_stated(s3: Any) -> None:
    one = {"Bucket": BUCKET, "Key": "one"}
    answer = s3.put_object(**one, Body=b"one", ChecksumSHA256=sha256(b"one"))

    found = s3.head_object(**one, ChecksumMode="ENABLED")
    assert answer["ChecksumSHA256"] == found["ChecksumSHA256"] == sha256(b"one")
    assert "ChecksumSHA256" not in s3.head_object(**one)


def test_body_that_is_not_what_was_stated_is_refused(s3: Any, upload: dict[str, str]) -> None:
    with pytest.raises(ClientError, match="BadDigest"):
        s3.put_object(Bucket=BUCKET, Key="other", Body=b"one", ChecksumSHA256=sha256(b"two"))
    with pytest.raises(ClientError, match="BadDigest"):
        s3.upload_part(**upload, PartNumber=2, Body=b"one", ChecksumSHA256=sha256(b"two"))

    with pytest.raises(ClientError, match="404"):
        s3.head_object(Bucket=BUCKET, Key="other")
    assert parts(s3, upload)[1]["ChecksumSHA256"] == sha256(LAST)


def test_upload_has_the_checksums_of_its_parts_and_is_completed_with_theirs(
    s3: Any, upload: dict[str, str]
) -> None:
    listed = s3.list_parts(**upload)
    assert [(part["Size"], part["ChecksumSHA256"]) for part in listed["Parts"]] == [
        (len(FIRST), sha256(FIRST)),
        (len(LAST), sha256(LAST)),
    ]
    assert listed["ChecksumAlgorithm"] == "SHA256"
    asked = {"MultipartUpload": {"Parts": parts(s3, upload)}}

    first = s3.complete_multipart_upload(**upload, **asked)
    again = s3.complete_multipart_upload(**upload, **asked)

    found = s3.head_object(Bucket=BUCKET, Key=upload["Key"], ChecksumMode="ENABLED")
    digests = b"".join(hashlib.sha256(data).digest() for data in (FIRST, LAST))
    assert [each["ChecksumSHA256"] for each in (first, again, found)] == [
        f"{sha256(digests)}-2"
    ] * 3
    assert (found["ChecksumType"], found["ContentLength"]) == (
        "COMPOSITE",
        len(FIRST) + len(LAST),
    )


@pytest.mark.parametrize(
    ("changed", "code"),
    [({"ChecksumSHA256": sha256(b"")}, "InvalidPart"), ({"ChecksumSHA256": None}, "InvalidReq")],
    ids=["wrong", "left out"],
)
def test_upload_is_not_completed_without_the_right_checksums(
    s3: Any, upload: dict[str, str], changed: dict[str, Any], code: str
) -> None:
    listed = parts(s3, upload)
    listed[1] = {name: value for name, value in (listed[1] | changed).items() if value}

    with pytest.raises(ClientError, match=code):
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": listed})

    assert len(s3.list_parts(**upload)["Parts"]) == 2


def test_part_of_an_upload_that_was_aborted_is_refused(s3: Any, upload: dict[str, str]) -> None:
    listed = parts(s3, upload)
    s3.abort_multipart_upload(**upload)

    with pytest.raises(ClientError, match="NoSuchUpload"):
        s3.upload_part(**upload, PartNumber=3, Body=b"x", ChecksumSHA256=sha256(b"x"))
    with pytest.raises(ClientError, match="NoSuchUpload"):
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": listed})


@pytest.mark.parametrize(
    ("operation", "more"),
    [
        ("PutObject", {"Body": b"x"}),
        ("GetObject", {}),
        ("HeadObject", {}),
        ("GetObjectAttributes", {"ObjectAttributes": ["ObjectSize"]}),
        ("CreateMultipartUpload", {}),
        ("UploadPart", {"UploadId": "u", "PartNumber": 1, "Body": b"x"}),
        ("ListParts", {"UploadId": "u"}),
        ("CompleteMultipartUpload", {"UploadId": "u", "MultipartUpload": {"Parts": []}}),
        ("AbortMultipartUpload", {"UploadId": "u"}),
        ("CopyObject", {"CopySource": {"Bucket": BUCKET, "Key": "k/1"}}),
    ],
)
def test_operations_of_one_path_are_told_apart(
    aws: LocalAws, s3: Any, script: object, operation: str, more: dict[str, Any]
) -> None:
    aws.inject("s3", operation, "AccessDenied")
    aws.forget_calls()

    with pytest.raises(ClientError) as raised:
        getattr(s3, xform_name(operation))(Bucket=BUCKET, Key="k/1", **more)

    assert aws.calls == [("s3", operation)]
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
