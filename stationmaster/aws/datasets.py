"""S3: how much a data set holds, asked once while a person waits for a plan.

Nothing is read but names and sizes. Which buckets may be asked about is configuration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from botocore.exceptions import ClientError

from stationmaster.aws.calls import aws_call
from stationmaster.domain.datasets import Listing, S3Source, preparation_of, prepared_bytes
from stationmaster.domain.errors import NotPossibleNow, TransientError

# A page has 1,000 objects and takes about 0.1 s. What is not counted in time is said to be more.
MAX_PAGES: Final = 10
TIME_LIMIT_S: Final = 1.2
ANY_BUCKET: Final = "*"


class Datasets:
    """Asks S3 about sources; `buckets` are the ones that may be read, * stands for any."""

    def __init__(
        self,
        buckets: Sequence[str],
        client: Any,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buckets = buckets
        self._client = client
        self._clock = clock

    def measure(self, source: S3Source, task: str) -> Listing:
        """What a source holds, for a recipe of this task.

        Raises:
            NotPossibleNow: the deployment may not read the bucket, it does not exist or does not
                let the deployment, there is nothing, or S3 does not answer.
        """
        self._check_configured(source)
        began = self._clock()
        sizes: list[tuple[str, int]] = []
        is_complete = True
        for number, page in enumerate(self._pages(source), start=1):
            sizes += page
            if number >= MAX_PAGES or self._clock() - began > TIME_LIMIT_S:
                is_complete = len(page) < 1000
                break
        if not sizes:
            raise NotPossibleNow(
                f'dataset="{source.uri}" holds no objects; check bucket and prefix'
            )
        preparation = preparation_of(task, [path for path, _ in sizes])
        return Listing(
            source=source.uri,
            num_bytes=sum(size for _, size in sizes),
            num_objects=len(sizes),
            preparation=preparation,
            prepared_bytes=sum(prepared_bytes(preparation, path, size) for path, size in sizes),
            is_complete=is_complete,
        )

    def _check_configured(self, source: S3Source) -> None:
        if source.bucket in self._buckets or ANY_BUCKET in self._buckets:
            return
        which = (
            f"reads data from {', '.join(self._buckets)} only"
            if self._buckets
            else "reads no data from S3 yet"
        )
        raise NotPossibleNow(
            f'dataset="{source.uri}": this deployment {which}; add "{source.bucket}" to '
            "dataset_buckets in cdk.json and deploy again, see docs/deploy.md"
        )

    def _pages(self, source: S3Source) -> Iterator[list[tuple[str, int]]]:
        """Paths below the prefix and their sizes; markers of folders are none."""
        pages = iter(
            self._client.get_paginator("list_objects_v2").paginate(
                Bucket=source.bucket, Prefix=source.prefix
            )
        )
        while True:
            try:
                page = _answer(source, lambda: next(pages, None))
            except TransientError as exc:
                raise NotPossibleNow(f"{exc}; type the command again") from exc
            if page is None:
                return
            yield [
                (item["Key"].removeprefix(source.prefix), item["Size"])
                for item in page.get("Contents", [])
                if not item["Key"].endswith("/")
            ]


def _answer(source: S3Source, ask: Callable[[], Any]) -> Any:
    with aws_call(f"listing {source.uri}"):
        try:
            return ask()
        except ClientError as exc:
            code = exc.response["Error"].get("Code", "")
            if code == "NoSuchBucket":
                raise NotPossibleNow(
                    f'dataset="{source.uri}": bucket {source.bucket} does not exist; check its name'
                ) from exc
            if code in ("AccessDenied", "AllAccessDisabled", "403"):
                raise NotPossibleNow(
                    f'dataset="{source.uri}" may not be read: {code}; let the deployment\'s roles '
                    "list and read the bucket, see docs/deploy.md"
                ) from exc
            raise
