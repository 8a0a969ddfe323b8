"""S3: what is uploaded is compared with the SHA-256 that the request states, and parts keep theirs.

moto 5.2.5 neither compares nor, without a second header, keeps the checksum of a body; parts have
none in ListParts, a multipart upload can be completed whatever their checksums are said to be, and
HeadObject leaves out the type of its checksum and its number of parts. A part of an upload that is
not there makes it fail.
Source: Amazon S3 API reference, PutObject, UploadPart, ListParts, CompleteMultipartUpload.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from xml.etree import ElementTree

from moto.core.responses import ActionResult
from moto.s3.exceptions import InvalidPart, NoSuchUpload, S3ClientError
from moto.s3.responses import S3Response

_ALGORITHM = "x-amz-sdk-checksum-algorithm"
_SHA256 = "x-amz-checksum-sha256"
_UPLOAD_ALGORITHM = "x-amz-checksum-algorithm"

_get_checksum = S3Response._get_checksum
_head_object = S3Response.head_object
_put_object = S3Response.put_object
_upload_part = S3Response.upload_part
_key_response_post = S3Response._key_response_post
_serialized = S3Response.serialized


def _verify(response: Any) -> None:
    """Refuse a body that is not the one whose checksum is stated."""
    stated = response.headers.get(_SHA256)
    if not stated:
        return
    if _sha256(response.body or b"") != stated:
        raise S3ClientError(
            "BadDigest", "The SHA256 you specified did not match the calculated checksum."
        )


def _sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def _checksum(self: Any, response_headers: dict[str, Any]) -> Any:
    stated = self.headers.get(_SHA256)
    if stated and _ALGORITHM not in self.headers:
        response_headers[_SHA256] = stated
        return "SHA256", stated
    return _get_checksum(self, response_headers)


def _put(self: Any) -> Any:
    _verify(self)
    return _put_object(self)


def _upload(self: Any) -> Any:
    multipart = _multipart(self, self._get_param("uploadId"))
    _verify(self)
    answer = _upload_part(self)
    if multipart.metadata.get(_UPLOAD_ALGORITHM) == "SHA256":
        part = multipart.parts[self._get_int_param("partNumber")]
        part.checksum_value = self.headers.get(_SHA256) or _sha256(part.value)
    return answer


def _multipart(response: Any, upload_id: str) -> Any:
    found = response.backend.get_bucket(response.bucket_name).multiparts.get(upload_id)
    if found is None:
        raise NoSuchUpload(upload_id)
    return found


def _post(
    self: Any, request: Any, body: bytes, bucket_name: str, query: dict[str, Any], key_name: str
) -> Any:
    if query.get("uploadId"):
        self.data["Action"] = "CompleteMultipartUpload"  # in whose terms an error is worded
        upload_id = query["uploadId"][0]
        existing = self.backend.get_object(bucket_name, key_name)
        # To complete an upload twice is allowed.
        if existing is None or not existing.multipart or existing.multipart.id != upload_id:
            _check_parts(_multipart(self, upload_id), body)
    return _key_response_post(self, request, body, bucket_name, query, key_name)


def _check_parts(multipart: Any, body: bytes) -> None:
    """Refuse to complete an upload with checksums unless each part's is stated, and right."""
    if multipart.metadata.get(_UPLOAD_ALGORITHM) != "SHA256":
        return
    for part in ElementTree.fromstring(body).iter():
        if not part.tag.endswith("Part"):
            continue
        said = {child.tag.rpartition("}")[2]: child.text for child in part}
        number = int(said["PartNumber"] or 0)
        if "ChecksumSHA256" not in said:
            raise S3ClientError(
                "InvalidRequest",
                "The upload was created using a sha256 checksum. The complete request must include "
                f"the checksum for each part. It was missing for part {number} in the request.",
            )
        stored = multipart.parts.get(number)
        if stored is None or stored.checksum_value != said["ChecksumSHA256"]:
            raise InvalidPart


def _with_checksums(self: Any, action_result: ActionResult) -> Any:
    result = action_result.result
    if isinstance(result, dict):
        match self.data.get("Action"):
            case "ListParts":
                multipart = _multipart(self, result["UploadId"])
                for part in result["Parts"]:
                    part["ChecksumSHA256"] = multipart.parts[part["PartNumber"]].checksum_value
                if multipart.metadata.get(_UPLOAD_ALGORITHM):
                    result["ChecksumAlgorithm"] = multipart.metadata[_UPLOAD_ALGORITHM]
                    result["ChecksumType"] = multipart.metadata.get("x-amz-checksum-type")
            case "CompleteMultipartUpload":
                key = self.backend.get_object(result["Bucket"], result["Key"])
                if key.checksum_algorithm and key.checksum_type == "COMPOSITE":
                    checksum = f"{key.checksum_value}-{key.checksum_parts}"
                    result[f"Checksum{key.checksum_algorithm}"] = checksum
                    result["ChecksumType"] = key.checksum_type
    return _serialized(self, action_result)


def _head(
    self: Any, bucket_name: str, query: dict[str, Any], key_name: str, headers: dict[str, Any]
) -> Any:
    status, answered, body = _head_object(self, bucket_name, query, key_name, headers)
    if status == 200 and headers.get("x-amz-checksum-mode") == "ENABLED":
        version_id = query.get("versionId", [None])[0]
        key = self.backend.head_object(bucket_name, key_name, version_id)
        if key.checksum_algorithm and key.checksum_type:
            answered["x-amz-checksum-type"] = key.checksum_type
        if key.checksum_type == "COMPOSITE":
            name = f"x-amz-checksum-{key.checksum_algorithm.lower()}"
            answered[name] = f"{key.checksum_value}-{key.checksum_parts}"
    return status, answered, body


def apply() -> None:
    """Replace how bodies are taken in, and how uploads are listed, completed and described."""
    S3Response.head_object = _head
    S3Response._get_checksum = _checksum
    S3Response.put_object = _put
    S3Response.upload_part = _upload
    S3Response._key_response_post = _post
    S3Response.serialized = _with_checksums
