"""The bucket of results as the saver uses it: one run's prefix, SHA-256 on everything."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import relayed_prefix, results_prefix
from stationmaster.relay.s3 import ATTEMPTS, Advice, Prefix, connect

_ADVICE: Final = Advice(
    if_no_bucket="deploy the data stack again, then save again",
    if_refused="give the saver's role its rights to the bucket and its key, then save again",
    if_changed="it was written meanwhile",
)


class AlreadySaved(PermanentError):
    """The run has left its result: a backup must not take its place."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part that S3 holds, of an upload that is not completed."""

    num_bytes: int
    checksum: str
    """The SHA-256 in base64; "" when the part has none."""
    etag: str


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


class ResultsBucket(Prefix):
    """A prefix in the bucket, usually that of a run's result."""

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        super().__init__(client, bucket=bucket, prefix=prefix, advice=_ADVICE)

    @classmethod
    def connect(
        cls, *, bucket: str, run_id: RunId, region: str, connections: int, attempts: int = ATTEMPTS
    ) -> ResultsBucket:
        """Make the client, for as many requests at once as there are `connections`."""
        # Each body is sent with the SHA-256 that S3 compares: one hash is enough.
        once = {"payload_signing_enabled": False}
        client = connect(region=region, connections=connections, attempts=attempts, s3=once)
        return cls(client, bucket=bucket, prefix=results_prefix(run_id))

    def relayed(self, relay: str) -> ResultsBucket:
        """Return where pods of relays whose names begin so put logs; a pod's own ends with "/"."""
        return ResultsBucket(self._client, bucket=self._bucket, prefix=relayed_prefix(relay))

    def objects(self) -> dict[str, int]:
        """List the size of each object under the run's prefix, by path."""
        listed = self._listed("list_objects_v2", "Contents", "listing objects")
        return {path: item["Size"] for path, item in listed}

    def uploads(self) -> dict[str, str]:
        """List the id of the newest upload that is not completed, by path."""
        listed = self._listed("list_multipart_uploads", "Uploads", "listing uploads")
        begun = sorted(listed, key=lambda found: found[1]["Initiated"].timestamp())
        return {path: item["UploadId"] for path, item in begun}

    def checksum(self, path: str) -> str:
        """Return the SHA-256 that S3 computed of an object, "" where it has none."""
        with self.call(f"looking at {path}"):
            found = self._client.head_object(**self._at(path), ChecksumMode="ENABLED")
        return found.get("ChecksumSHA256", "")

    def parts(self, path: str, upload_id: str) -> dict[int, StoredPart]:
        """List the parts that S3 holds of an upload, by number; none when the upload is gone."""
        found: dict[int, StoredPart] = {}
        place = {**self._at(path), "UploadId": upload_id}
        with self.call(f"listing parts of {path}", passing="NoSuchUpload"):
            for page in self._client.get_paginator("list_parts").paginate(**place):
                for part in page.get("Parts", []):
                    found[part["PartNumber"]] = StoredPart(
                        part["Size"], part.get("ChecksumSHA256", ""), part["ETag"]
                    )
        return found

    def begin(self, path: str) -> str:
        """Begin a multipart upload, and return its id."""
        with self.call(f"beginning {path}"):
            return self._client.create_multipart_upload(
                **self._at(path), ChecksumAlgorithm="SHA256", ChecksumType="COMPOSITE"
            )["UploadId"]

    def put_part(
        self, path: str, upload_id: str, *, number: int, data: bytes, digest: bytes
    ) -> StoredPart:
        """Upload one part."""
        checksum = _base64(digest)
        with self.call(f"uploading part {number} of {path}"):
            answer = self._client.upload_part(
                **self._at(path),
                UploadId=upload_id,
                PartNumber=number,
                Body=data,
                ChecksumSHA256=checksum,
            )
        return StoredPart(len(data), checksum, answer["ETag"])

    def complete(self, path: str, upload_id: str, parts: Sequence[StoredPart]) -> str:
        """Make an object of all parts, in their order; return S3's checksum of it."""
        listed = [
            {"PartNumber": number, "ETag": part.etag, "ChecksumSHA256": part.checksum}
            for number, part in enumerate(parts, start=1)
        ]
        with self.call(f"completing {path}"):
            return self._client.complete_multipart_upload(
                **self._at(path), UploadId=upload_id, MultipartUpload={"Parts": listed}
            ).get("ChecksumSHA256", "")

    def abort(self, path: str, upload_id: str) -> None:
        """Give up an upload, so that its parts cost nothing; one that is gone does no harm."""
        with self.call(f"giving up {path}", passing="NoSuchUpload"):
            self._client.abort_multipart_upload(**self._at(path), UploadId=upload_id)

    def put(self, path: str, data: bytes, *, digest: bytes) -> str:
        """Upload a whole object; return S3's checksum of it."""
        with self.call(f"uploading {path}"):
            answer = self._client.put_object(
                **self._at(path), Body=data, ChecksumSHA256=_base64(digest)
            )
        return answer.get("ChecksumSHA256", "")

    def version(self, path: str) -> str | None:
        """Return the ETag of an object, by which `replace` knows it; None when there is none.

        It is listed: S3 says that an object is missing only to who may list the whole bucket.
        """
        key = self._prefix + path
        with self.call(f"looking at {path}"):
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1)
        found = answer.get("Contents", [])
        return found[0]["ETag"] if found and found[0]["Key"] == key else None

    def read(self, path: str) -> bytes | None:
        """Read a small object; None when there is none."""
        if self.version(path) is None:
            return None
        found: list[bytes] = []
        with self.call(f"reading {path}", passing="NoSuchKey"):
            found.append(self._client.get_object(**self._at(path))["Body"].read())
        return found[0] if found else None

    def replace(self, path: str, data: bytes, *, digest: bytes, version: str | None) -> None:
        """Upload a whole object in place of the version that was read, or of none.

        Raises:
            WrittenMeanwhile: there is another version now.
        """
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        with self.call(f"uploading {path}"):
            self._client.put_object(
                **self._at(path), Body=data, ChecksumSHA256=_base64(digest), **condition
            )
