"""S3 on the local endpoint: checksums as S3 states them, operations told apart, errors of HEAD."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stationmaster.local.aws import DeploymentSpec, LocalAws

BUCKET = "test-artifacts"
# The smallest part that S3 takes, but for the last.
PART_BYTES = 5 * 1024 * 1024


@pytest.fixture(scope="module")
def bucket(aws: LocalAws) -> str:
    aws.deploy(DeploymentSpec(buckets=[BUCKET]))
    return BUCKET


def upload_in_parts(s3: Any, bucket: str, key: str, parts: list[bytes]) -> str:
    """Upload with a checksum for each part; the checksum that S3 computes of the whole."""
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="SHA256")
    place = {"Bucket": bucket, "Key": key, "UploadId": upload["UploadId"]}
    done = []
    for number, data in enumerate(parts, start=1):
        answer = s3.upload_part(**place, PartNumber=number, Body=data, ChecksumAlgorithm="SHA256")
        done.append(
            {
                "PartNumber": number,
                "ETag": answer["ETag"],
                "ChecksumSHA256": answer["ChecksumSHA256"],
            }
        )
    s3.complete_multipart_upload(**place, MultipartUpload={"Parts": done})
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
    return f"{base64.b64encode(digest).decode()}-{len(parts)}"


def test_head_states_the_checksum_of_checksums_and_the_number_of_parts(
    aws: LocalAws, bucket: str
) -> None:
    s3 = aws.client("s3")

    expected = upload_in_parts(s3, bucket, "runs/a/parts", [bytes(PART_BYTES), b"tail"])

    found = s3.head_object(Bucket=bucket, Key="runs/a/parts", ChecksumMode="ENABLED")
    assert found["ChecksumSHA256"] == expected
    assert found["ChecksumType"] == "COMPOSITE"
    assert found["ContentLength"] == PART_BYTES + 4
    silent = s3.head_object(Bucket=bucket, Key="runs/a/parts")
    assert "ChecksumSHA256" not in silent


CALLS: dict[str, Callable[[Any], Any]] = {
    "PutObject": lambda s3: s3.put_object(Bucket=BUCKET, Key="k/1", Body=b"x"),
    "GetObject": lambda s3: s3.get_object(Bucket=BUCKET, Key="k/1"),
    "HeadObject": lambda s3: s3.head_object(Bucket=BUCKET, Key="k/1"),
    "GetObjectAttributes": lambda s3: s3.get_object_attributes(
        Bucket=BUCKET, Key="k/1", ObjectAttributes=["ObjectSize"]
    ),
    "ListObjectsV2": lambda s3: s3.list_objects_v2(Bucket=BUCKET, Prefix="k/"),
    "CreateMultipartUpload": lambda s3: s3.create_multipart_upload(Bucket=BUCKET, Key="k/2"),
    "UploadPart": lambda s3: s3.upload_part(
        Bucket=BUCKET, Key="k/2", UploadId="u", PartNumber=1, Body=b"x"
    ),
    "ListParts": lambda s3: s3.list_parts(Bucket=BUCKET, Key="k/2", UploadId="u"),
    "CompleteMultipartUpload": lambda s3: s3.complete_multipart_upload(
        Bucket=BUCKET, Key="k/2", UploadId="u", MultipartUpload={"Parts": []}
    ),
    "AbortMultipartUpload": lambda s3: s3.abort_multipart_upload(
        Bucket=BUCKET, Key="k/2", UploadId="u"
    ),
    "CopyObject": lambda s3: s3.copy_object(
        Bucket=BUCKET, Key="k/3", CopySource={"Bucket": BUCKET, "Key": "k/1"}
    ),
}


@pytest.mark.parametrize("operation", CALLS)
def test_operations_of_one_path_are_told_apart(
    operation: str, aws: LocalAws, bucket: str, script: object
) -> None:
    aws.inject("s3", operation, "AccessDenied")
    aws.forget_calls()

    with pytest.raises(ClientError) as raised:
        CALLS[operation](aws.client("s3"))

    assert aws.calls == [("s3", operation)]
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
