"""The bucket of results as the saver uses it: one run's prefix, SHA-256 on everything.

Threads may share it. botocore retries throttling, 5xx and lost connections; the rest is one of two
errors.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import relayed_prefix, results_prefix

# Trying again does not help: a right, the bucket or its key is missing.
_REFUSALS: Final = frozenset(
    {"AccessDenied", "403", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
# With backoff of up to 20 s each, about two minutes of throttling are sat out.
ATTEMPTS: Final = 10


class SavingRefused(PermanentError):
    """S3 refuses the saver, or the bucket is gone."""


class NotSaved(TransientError):
    """S3 did not take something; another start may succeed."""


class AlreadySaved(PermanentError):
    """The run has left its result: a backup must not take its place."""


class WrittenMeanwhile(NotSaved):
    """Somebody else has written the object since it was looked at."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part that S3 holds, of an upload that is not completed."""

    num_bytes: int
    checksum: str
    """The SHA-256 in base64; "" when the part has none."""
    etag: str


class ResultsBucket:
    """A prefix in the bucket, usually that of a run's result; paths are below it."""

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    @classmethod
    def connect(
        cls, *, bucket: str, run_id: RunId, region: str, connections: int, attempts: int = ATTEMPTS
    ) -> ResultsBucket:
        """Make the client, for as many requests at once as there are `connections`."""
        config = Config(
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=connections,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            # Each body is sent with the SHA-256 that S3 compares: one hash is enough.
            s3={"payload_signing_enabled": False},
        )
        client: Any = boto3.client("s3", region_name=region, config=config)
        return cls(client, bucket=bucket, prefix=results_prefix(run_id))

    def relayed(self, relay: str) -> ResultsBucket:
        """Return where pods of relays whose names begin so put logs; a pod's own ends with "/"."""
        return ResultsBucket(self._client, bucket=self._bucket, prefix=relayed_prefix(relay))

    def objects(self) -> dict[str, int]:
        """List the size of each object under the run's prefix, by path."""
        found: dict[str, int] = {}
        with self._call("listing objects"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for item in page.get("Contents", []):
                    found[item["Key"].removeprefix(self._prefix)] = item["Size"]
        return found

    def uploads(self) -> dict[str, str]:
        """List the id of the newest upload that is not completed, by path."""
        newest: dict[str, tuple[float, str]] = {}
        with self._call("listing uploads"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for item in page.get("Uploads", []):
                    path = item["Key"].removeprefix(self._prefix)
                    begun = (item["Initiated"].timestamp(), item["UploadId"])
                    newest[path] = max(begun, newest.get(path, begun))
        return {path: upload_id for path, (_, upload_id) in newest.items()}

    def checksum(self, path: str) -> str:
        """Return the SHA-256 that S3 computed of an object, "" where it has none."""
        with self._call(f"looking at {path}"):
            found = self._client.head_object(**self._at(path), ChecksumMode="ENABLED")
        return found.get("ChecksumSHA256", "")

    def parts(self, path: str, upload_id: str) -> dict[int, StoredPart]:
        """List the parts that S3 holds of an upload, by number; none when the upload is gone."""
        found: dict[int, StoredPart] = {}
        try:
            pages = self._client.get_paginator("list_parts").paginate(
                **self._at(path), UploadId=upload_id
            )
            with self._call(f"listing parts of {path}", passing="NoSuchUpload"):
                for page in pages:
                    for part in page.get("Parts", []):
                        found[part["PartNumber"]] = StoredPart(
                            part["Size"], part.get("ChecksumSHA256", ""), part["ETag"]
                        )
        except ClientError:
            return {}
        return found

    def begin(self, path: str) -> str:
        """Begin a multipart upload, and return its id."""
        with self._call(f"beginning {path}"):
            return self._client.create_multipart_upload(
                **self._at(path), ChecksumAlgorithm="SHA256", ChecksumType="COMPOSITE"
            )["UploadId"]

    def put_part(
        self, path: str, upload_id: str, *, number: int, data: bytes, digest: bytes
    ) -> StoredPart:
        """Upload one part."""
        checksum = base64.b64encode(digest).decode("ascii")
        with self._call(f"uploading part {number} of {path}"):
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
        with self._call(f"completing {path}"):
            return self._client.complete_multipart_upload(
                **self._at(path), UploadId=upload_id, MultipartUpload={"Parts": listed}
            ).get("ChecksumSHA256", "")

    def abort(self, path: str, upload_id: str) -> None:
        """Give up an upload, so that its parts cost nothing; one that is gone does no harm."""
        try:
            with self._call(f"giving up {path}", passing="NoSuchUpload"):
                self._client.abort_multipart_upload(**self._at(path), UploadId=upload_id)
        except ClientError:
            return

    def put(self, path: str, data: bytes, *, digest: bytes) -> str:
        """Upload a whole object; return S3's checksum of it."""
        checksum = base64.b64encode(digest).decode("ascii")
        with self._call(f"uploading {path}"):
            return self._client.put_object(
                **self._at(path), Body=data, ChecksumSHA256=checksum
            ).get("ChecksumSHA256", "")

    def version(self, path: str) -> str | None:
        """Return the ETag of an object, by which `replace` knows it; None when there is none.

        It is listed: S3 says that an object is missing only to who may list the whole bucket.
        """
        key = self._prefix + path
        with self._call(f"looking at {path}"):
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1)
        found = answer.get("Contents", [])
        return found[0]["ETag"] if found and found[0]["Key"] == key else None

    def read(self, path: str) -> bytes | None:
        """Read a small object; None when there is none."""
        if self.version(path) is None:
            return None
        try:
            with self._call(f"reading {path}", passing="NoSuchKey"):
                return bytes(self._client.get_object(**self._at(path))["Body"].read())
        except ClientError:
            return None

    def replace(self, path: str, data: bytes, *, digest: bytes, version: str | None) -> None:
        """Upload a whole object in place of the version that was read, or of none.

        Raises:
            WrittenMeanwhile: there is another version now.
        """
        checksum = base64.b64encode(digest).decode("ascii")
        with self._call(f"uploading {path}"):
            if version is None:
                self._client.put_object(
                    **self._at(path), Body=data, ChecksumSHA256=checksum, IfNoneMatch="*"
                )
            else:
                self._client.put_object(
                    **self._at(path), Body=data, ChecksumSHA256=checksum, IfMatch=version
                )

    def _at(self, path: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + path}

    @contextmanager
    def _call(self, doing: str, *, passing: str = "") -> Iterator[None]:
        """Turn what S3 answers into our errors; one with the code `passing` is left as it is."""
        try:
            yield
        except ClientError as exc:
            error = exc.response["Error"]
            code, said = error.get("Code", ""), error.get("Message", "")
            if code == passing:
                raise
            where = f"s3://{self._bucket}/{self._prefix}"
            if code == "NoSuchBucket":
                raise SavingRefused(
                    f"{doing}: bucket {self._bucket} does not exist; deploy the data stack again, "
                    "then save again"
                ) from exc
            if code in _REFUSALS or code.startswith("KMS."):
                raise SavingRefused(
                    f"{doing} in {where} was refused: {code}: {said}; give the saver's role its "
                    "rights to the bucket and its key, then save again"
                ) from exc
            if code in ("PreconditionFailed", "ConditionalRequestConflict", "412"):
                raise WrittenMeanwhile(f"{doing} in {where}: it was written meanwhile") from exc
            raise NotSaved(f"{doing} in {where} failed: {code}: {said}") from exc
        except BotoCoreError as exc:
            raise NotSaved(f"{doing} in s3://{self._bucket} failed: {exc}") from exc
