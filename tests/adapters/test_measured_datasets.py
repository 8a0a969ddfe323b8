"""What S3 is asked about a data set when a command is typed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import boto3
import pytest
from moto import mock_aws

from stationmaster.aws.calls import make_client
from stationmaster.aws.configs import QUICK
from stationmaster.aws.datasets import ANY_BUCKET, MAX_PAGES, Datasets
from stationmaster.domain.datasets import AS_IT_IS, FOR_MEGATRON, Preparation, S3Source
from stationmaster.domain.errors import NotPossibleNow

BUCKET = "research-data"
BOOKS = S3Source(BUCKET, "books/")


class Pages:
    """S3 with more objects than are counted, or with an error."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.asked = 0
        self._error = error

    def get_paginator(self, _name: str) -> Pages:
        return self

    def paginate(self, **_about: str) -> Iterator[dict[str, Any]]:
        if self._error is not None:
            raise self._error
        for page in count():
            self.asked += 1
            yield {"Contents": [{"Key": f"books/{page}-{n}.txt", "Size": 10} for n in range(1000)]}


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with mock_aws():
        client = make_client("s3", region="us-west-2", config=QUICK)
        where = {"LocationConstraint": "us-west-2"}
        boto3.client("s3", "us-west-2").create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration=where
        )
        yield client


def test_objects_below_the_prefix_are_counted(s3: Any) -> None:
    for key, size in (("books/a.txt", 10), ("books/b.gz", 5), ("books/", 0), ("other", 99)):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"x" * size)

    found = Datasets([BUCKET], s3).measure(BOOKS, "pretraining")

    assert (found.num_objects, found.num_bytes, found.is_complete) == (2, 15, True)
    assert (found.preparation, found.prepared_bytes) == (Preparation.TOKENS, 10 + 3 * 5)
    assert found.source == "s3://research-data/books/"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (BOOKS, 'dataset="s3://research-data/books/" holds no objects'),
        (S3Source("no-such-bucket", ""), "bucket no-such-bucket does not exist"),
    ],
)
def test_source_without_objects_is_refused(s3: Any, source: S3Source, said: str) -> None:
    with pytest.raises(NotPossibleNow, match=said):
        Datasets([ANY_BUCKET], s3).measure(source, "pretraining")


@pytest.mark.parametrize("task", ["pretraining", "finetuning", FOR_MEGATRON])
def test_objects_that_are_no_text_are_refused_with_their_number(s3: Any, task: str) -> None:
    for number in range(40):
        s3.put_object(Bucket=BUCKET, Key=f"books/{number:02}.jsonl", Body=b'{"text": "x"}')
    s3.put_object(Bucket=BUCKET, Key="books/a.zst", Body=b"\x28\xb5\x2f\xfd...")
    s3.put_object(Bucket=BUCKET, Key="books/empty.txt", Body=b"")
    s3.put_object(Bucket=BUCKET, Key="books/old.txt", Body="caf\u00e9 au lait".encode("latin-1"))
    s3.put_object(Bucket=BUCKET, Key="books/x.tar.gz", Body=b"\x1f\x8b...")

    with pytest.raises(NotPossibleNow) as caught:
        Datasets([BUCKET], s3).measure(BOOKS, task)

    assert str(caught.value).startswith(
        'dataset="s3://research-data/books/": 2 of 44 files cannot be read as text '
        "(24 were looked at): x.tar.gz is an archive; old.txt is no UTF-8: byte 0xe9 at 3; "
    )
    assert Datasets([BUCKET], s3).measure(BOOKS, AS_IT_IS).num_objects == 44


@pytest.mark.parametrize(
    ("buckets", "said"),
    [
        ((), "reads no data from S3 yet; add .research-data. to dataset_buckets in cdk.json"),
        (("other",), "reads data from other only; add .research-data. to dataset_buckets"),
    ],
)
def test_bucket_that_is_not_configured_is_refused_without_a_call(
    buckets: tuple[str, ...], said: str
) -> None:
    pages = Pages()

    with pytest.raises(NotPossibleNow, match=said):
        Datasets(buckets, pages).measure(BOOKS, "pretraining")

    assert pages.asked == 0


def test_very_many_objects_are_counted_up_to_a_limit() -> None:
    pages = Pages()

    found = Datasets([BUCKET], pages, clock=lambda: 0.0).measure(BOOKS, AS_IT_IS)

    assert pages.asked == MAX_PAGES
    assert (found.num_objects, found.is_complete) == (MAX_PAGES * 1000, False)


def test_images_beyond_the_limit_are_judged_by_their_class_folders() -> None:
    """Three classes of 4,000 images are begun, of 50 that there are."""

    class ClassFolders(Pages):
        classes = 50

        def paginate(self, **_about: str) -> Iterator[dict[str, Any]]:
            for page in count():
                keys = [f"i/train/{page // 4:04}/{page}-{n}.jpg" for n in range(1000)]
                yield {"Contents": [{"Key": key, "Size": 100} for key in keys]}

        def list_objects_v2(self, **about: str) -> dict[str, Any]:
            assert about == {"Bucket": BUCKET, "Prefix": "i/train/", "Delimiter": "/"}
            names = [{"Prefix": f"i/train/{n:04}/"} for n in range(self.classes)]
            return {"CommonPrefixes": names[:1000], "IsTruncated": self.classes > 1000}

    folders = ClassFolders()
    ask = Datasets([BUCKET], folders, linked=[BUCKET], clock=lambda: 0.0)
    images = S3Source(BUCKET, "i/")

    found = ask.measure(images, "image-classification")

    assert (found.num_objects, found.is_complete, found.may_link) == (10_000, False, True)
    assert (found.likely_objects, found.likely_bytes) == (50 * 4000, 50 * 4000 * 100)
    folders.classes = 1001
    assert ask.measure(images, "image-classification").likely_objects == 0
    assert ask.measure(S3Source(BUCKET, "i/train/"), "image-classification").likely_objects == 0


def test_buckets_that_are_not_to_be_linked_are_not(s3: Any) -> None:
    s3.put_object(Bucket=BUCKET, Key="books/a.txt", Body=b"x")

    may_link = [
        Datasets([BUCKET], s3, linked=linked).measure(BOOKS, "pretraining").may_link
        for linked in ((), ("other",), (BUCKET,), (ANY_BUCKET,))
    ]

    assert may_link == [False, False, True, True]


def test_listing_that_takes_long_is_cut_short() -> None:
    pages, times = Pages(), iter([0.0, 1.0, 2.0])

    found = Datasets([BUCKET], pages, clock=lambda: next(times)).measure(BOOKS, AS_IT_IS)

    assert (found.num_objects, found.is_complete) == (2000, False)


def refused(code: str, status: int) -> Exception:
    from botocore.exceptions import ClientError

    answer: Any = {
        "Error": {"Code": code, "Message": "no"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "ListObjectsV2")


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("AccessDenied", 403, "may not be read: AccessDenied; let the deployment's roles"),
        ("SlowDown", 503, "SlowDown: no; type the command again"),
    ],
)
def test_refusal_of_s3_is_one_sentence(code: str, status: int, said: str) -> None:
    pages = Pages(error=refused(code, status))

    with pytest.raises(NotPossibleNow, match=said):
        Datasets([BUCKET], pages).measure(BOOKS, AS_IT_IS)
