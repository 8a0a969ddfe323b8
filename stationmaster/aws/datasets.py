"""S3: how much a data set holds, asked once while a person waits for a plan.

Names and sizes are read, and the first bytes of some objects of text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from stationmaster.aws.calls import aws_call
from stationmaster.domain.data_files import HEAD_BYTES, refusal, strangeness
from stationmaster.domain.datasets import (
    Listing,
    Preparation,
    S3Source,
    preparation_of,
    prepared_bytes,
)
from stationmaster.domain.errors import NotPossibleNow, TransientError
from stationmaster.domain.indexed import IDX

# A page has 1,000 objects and takes about 0.1 s. What is not counted in time is said to be more.
MAX_PAGES: Final = 10
TIME_LIMIT_S: Final = 1.2
ANY_BUCKET: Final = "*"
# Three rounds of about 50 ms each: Slack waits for the answer.
_LOOKED_INTO: Final = 24
_LOOKS_AT_ONCE: Final = 8
_TEXT: Final = (Preparation.TOKENS, Preparation.MEGATRON)
# See `training.data.image_lists`: train/CLASS/NAME, and val/CLASS/NAME after all of these.
_TRAINING_FOLDER: Final = "train"


class Datasets:
    """Asks S3 about sources.

    `buckets` may be read, and FSx may link those in `linked`; * stands for any.
    """

    def __init__(
        self,
        buckets: Sequence[str],
        client: Any,
        *,
        linked: Sequence[str] = (),
        link_saves_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buckets = buckets
        self._client = client
        self._linked = linked
        self._link_saves_s = link_saves_s
        self._clock = clock

    def measure(self, source: S3Source, task: str) -> Listing:
        """Measure what a source holds, for a recipe of this task.

        Raises:
            NotPossibleNow: the deployment may not read the bucket, it does not exist or refuses,
                there is nothing, or S3 does not answer.
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
        if preparation in _TEXT or task == "finetuning":
            self._check_text(source, [path for path, _ in sizes])
        is_cut = preparation is Preparation.IMAGES and not is_complete
        likely_objects, likely_bytes = self._by_classes(source, sizes) if is_cut else (0, 0)
        return Listing(
            source=source.uri,
            num_bytes=sum(size for _, size in sizes),
            num_objects=len(sizes),
            preparation=preparation,
            prepared_bytes=sum(prepared_bytes(preparation, path, size) for path, size in sizes),
            is_complete=is_complete,
            likely_objects=likely_objects,
            likely_bytes=likely_bytes,
            may_link=source.bucket in self._linked or ANY_BUCKET in self._linked,
            link_saves_s=self._link_saves_s,
        )

    def _check_text(self, source: S3Source, paths: Sequence[str]) -> None:
        """Refuse what cannot be read as text, before anything is made for it.

        Raises:
            NotPossibleNow: naming files, and how many there are.
        """
        if any(path.endswith(IDX) for path in paths):  # Megatron's own files
            return

        def look(path: str) -> str:
            place = {"Bucket": source.bucket, "Key": source.prefix + path}
            try:
                answer = self._client.get_object(**place, Range=f"bytes=0-{HEAD_BYTES - 1}")
                return strangeness(path, answer["Body"].read())
            except (ClientError, BotoCoreError):
                return ""  # an empty object, or one that only the stager may read

        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
            said = refusal(source.uri, paths, partial(pool.map, look), most=_LOOKED_INTO)
        if said:
            raise NotPossibleNow(said)

    def _by_classes(self, source: S3Source, sizes: Sequence[tuple[str, int]]) -> tuple[int, int]:
        """Estimate objects and bytes by the classes that were counted whole; 0 where none tell."""
        folders: dict[str, list[int]] = {}
        for path, size in sizes:
            parts = path.split("/")
            if len(parts) != 3 or parts[0] != _TRAINING_FOLDER:
                return 0, 0  # no class folders, or not all of the first of two was counted
            folders.setdefault(parts[1], []).append(size)
        *whole, _ = folders.values()  # the last one goes on
        if not whole:
            return 0, 0
        below = f"{source.prefix}{_TRAINING_FOLDER}/"
        ask = partial(
            self._client.list_objects_v2, Bucket=source.bucket, Prefix=below, Delimiter="/"
        )
        try:
            answer = _answer(source, ask)
        except TransientError:
            return 0, 0  # an estimate is not worth a refused command
        if answer.get("IsTruncated"):
            return 0, 0
        share = len(answer.get("CommonPrefixes", [])) / len(whole)
        counted = [size for each in whole for size in each]
        return round(len(counted) * share), round(sum(counted) * share)

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
        """Yield paths below the prefix and their sizes; markers of folders are left out."""
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
