"""A prefix of a bucket as the relay's programs use it: its client, its list, and two errors.

Threads may share it. botocore retries throttling, 5xx and lost connections; the rest is one of two
errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from stationmaster.domain.errors import PermanentError, TransientError

# Trying again does not help: a right, the bucket or its key is missing.
_REFUSALS: Final = frozenset(
    {"AccessDenied", "403", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
_OF_ANOTHER_VERSION: Final = frozenset(
    {"PreconditionFailed", "ConditionalRequestConflict", "412", "NoSuchKey", "404"}
)
# With backoff of up to 20 s each, about two minutes of throttling are sat out.
ATTEMPTS: Final = 10


class Refused(PermanentError):
    """S3 refuses a program, or what it asks for is missing or unfit."""


class NotDone(TransientError):
    """S3 did not give or take something; another start may succeed."""


class WrittenMeanwhile(NotDone):
    """Somebody else has written the object since it was looked at."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do where nothing can be read or written; ends sentences."""

    if_no_bucket: str
    if_refused: str
    if_changed: str = (
        "the object changed while data was copied; another start copies what is there then"
    )
    if_empty: str = ""


def connect(*, region: str, connections: int, attempts: int, **options: Any) -> Any:
    """Make the client, for as many requests at once as there are `connections`."""
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=connections,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        **options,
    )
    return boto3.client("s3", region_name=region, config=config)


class Prefix:
    """What is below a prefix of a bucket; paths are below it."""

    def __init__(self, client: Any, *, bucket: str, prefix: str, advice: Advice) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._advice = advice

    @property
    def uri(self) -> str:
        """The address as people and tools write it."""
        return f"s3://{self._bucket}/{self._prefix}"

    def _at(self, path: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + path}

    def _listed(self, operation: str, entries: str, doing: str) -> Iterator[tuple[str, Any]]:
        """Yield the path of each entry, and the entry, from all pages of a list."""
        with self.call(doing):
            pages = self._client.get_paginator(operation).paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for item in page.get(entries, []):
                    yield item["Key"].removeprefix(self._prefix), item

    @contextmanager
    def call(self, doing: str, *, passing: str = "") -> Iterator[None]:
        """Turn what S3 answers into our errors; one with the code `passing` ends the call well."""
        where = f"{doing} in {self.uri}"
        try:
            yield
        except ClientError as exc:
            error = exc.response["Error"]
            code, said = error.get("Code", ""), error.get("Message", "")
            if code == passing:
                return
            if code == "NoSuchBucket":
                raise Refused(
                    f"{where}: bucket {self._bucket} does not exist; {self._advice.if_no_bucket}"
                ) from exc
            if code in _REFUSALS or code.startswith("KMS."):
                raise Refused(
                    f"{where} was refused: {code}: {said}; {self._advice.if_refused}"
                ) from exc
            if code in _OF_ANOTHER_VERSION:
                raise WrittenMeanwhile(f"{where}: {self._advice.if_changed}") from exc
            raise NotDone(f"{where} failed: {code}: {said}") from exc
        except BotoCoreError as exc:
            raise NotDone(f"{where} failed: {exc}") from exc
