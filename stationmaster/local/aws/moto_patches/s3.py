"""S3: HeadObject states the checksum of a multipart upload as S3 does, with its number of parts.

moto 5.2.5 leaves type and number out of this answer; GetObject's has both.
"""

from __future__ import annotations

from typing import Any

from moto.s3.responses import S3Response

_head_object = S3Response.head_object


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
    """Replace how objects are described."""
    S3Response.head_object = _head
