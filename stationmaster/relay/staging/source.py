"""A bucket as the stager reads it: what is below a prefix, in pieces, of one version only."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from stationmaster.domain.datasets import S3Source, SourceObject, is_plain
from stationmaster.domain.staged_data import CheckedBy
from stationmaster.relay.s3 import ATTEMPTS, Advice, Prefix, Refused, connect

_MD5: Final = re.compile(r"[0-9a-f]{32}")
_MD5_OF_PARTS: Final = re.compile(r"[0-9a-f]{32}-[0-9]+")
_PIECE_BYTES: Final = 2**20


OF_DATA: Final = Advice(
    if_empty="give another dataset=",
    if_no_bucket="check dataset=",
    if_refused="the stager's role may read the buckets and keys that the deployment names in "
    "dataset_buckets and dataset_key_arns, see docs/deploy.md",
)
OF_RESULTS: Final = Advice(
    if_empty="nothing was saved of that run, use another one's result",
    if_no_bucket="it is the artifacts bucket of the deployment: deploy the data stack",
    if_refused="the stager's role may read runs/ of the artifacts bucket: deploy the stacks again",
)


@dataclass(frozen=True, slots=True)
class Check:
    """What a copy of an object must come to."""

    by: CheckedBy
    expected: str = ""
    """The hash in hex, of the whole object, or with `of_parts` of the digests of its parts."""
    of_parts: bool = False

    @property
    def algorithm(self) -> str | None:
        """The name of the hash, or None where there is nothing to compare with."""
        return {CheckedBy.SHA256: "sha256", CheckedBy.ETAG: "md5", CheckedBy.SIZE: None}[self.by]


@dataclass(frozen=True, slots=True)
class Body:
    """What S3 sends, and what all of the object must come to."""

    check: Check
    pieces: Iterator[bytes]


class SourceBucket(Prefix):
    """The objects below one prefix."""

    @classmethod
    def connect(
        cls,
        source: S3Source,
        *,
        region: str,
        connections: int,
        attempts: int = ATTEMPTS,
        advice: Advice = OF_DATA,
    ) -> SourceBucket:
        """Make the client, for as many requests at once as there are `connections`."""
        # Parts are compared by the stager; botocore would warn of composite checksums.
        client = connect(
            region=region,
            connections=connections,
            attempts=attempts,
            response_checksum_validation="when_required",
        )
        return cls(client, bucket=source.bucket, prefix=source.prefix, advice=advice)

    def objects(self) -> list[SourceObject]:
        """List everything below the prefix, ordered by path; markers of folders are left out.

        Raises:
            Refused: there is nothing.
        """
        found = [
            SourceObject(path, item["Size"], item["ETag"].strip('"'))
            for path, item in self._listed("list_objects_v2", "Contents", "listing objects")
            if not path.endswith("/")
        ]
        if not found:
            raise Refused(f"{self.uri} holds no objects; {self._advice.if_empty}")
        strange = next((each.path for each in found if not is_plain(each.path)), None)
        if strange is not None:
            raise Refused(
                f"{self.uri} holds the object {strange!r}, which cannot be a file; copy "
                "the data to a prefix without it"
            )
        return sorted(found, key=lambda each: each.path)

    def check(self, found: SourceObject) -> Check:
        with self.call(f"looking at {found.path}"):
            answer = self._client.head_object(**self._version_of(found), ChecksumMode="ENABLED")
        return _check(found, answer)

    def part_bytes(self, found: SourceObject, num_parts: int) -> int | None:
        """Return the bytes of each part that the object was uploaded in, None where they differ.

        Whether it is still the same object shows when it is read.
        """
        place = self._at(found.path)
        with self.call(f"looking at a part of {found.path}"):
            first, last = (
                self._client.head_object(**place, PartNumber=number) for number in (1, num_parts)
            )
        each: int = first["ContentLength"]
        rest = found.num_bytes - (num_parts - 1) * each
        return each if last["ContentLength"] == rest and 0 < rest <= each else None

    @contextmanager
    def opened(
        self, found: SourceObject, *, start: int = 0, end: int | None = None
    ) -> Iterator[Body]:
        """Read the bytes [start, end) of an object, all of them without an end."""
        wanted = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
        with self.call(f"reading {found.path}"):
            answer = self._client.get_object(
                **self._version_of(found), ChecksumMode="ENABLED", **wanted
            )
            body = answer["Body"]
            try:
                yield Body(_check(found, answer), body.iter_chunks(_PIECE_BYTES))
            finally:
                body.close()

    def _version_of(self, found: SourceObject) -> dict[str, str]:
        return {**self._at(found.path), "IfMatch": f'"{found.etag}"'}


def _check(found: SourceObject, answer: dict[str, Any]) -> Check:
    """Check by S3's own SHA-256 where it has one, by the ETag where that is an MD5, or by nothing.

    Source: Amazon S3 API reference, "Object", on ETag: an MD5 unless encrypted with KMS or a
    customer's key, and of several parts the MD5 of their MD5s.
    """
    stated = answer.get("ChecksumSHA256", "")
    digest, _, parts = stated.partition("-")
    if digest:
        try:
            return Check(CheckedBy.SHA256, base64.b64decode(digest).hex(), bool(parts))
        except binascii.Error:
            return Check(CheckedBy.SIZE)
    encrypted = answer.get("ServerSideEncryption", "").startswith("aws:kms")
    if encrypted or answer.get("SSECustomerAlgorithm"):
        return Check(CheckedBy.SIZE)
    if _MD5.fullmatch(found.etag):
        return Check(CheckedBy.ETAG, found.etag)
    if _MD5_OF_PARTS.fullmatch(found.etag):
        return Check(CheckedBy.ETAG, found.etag.partition("-")[0], of_parts=True)
    return Check(CheckedBy.SIZE)
