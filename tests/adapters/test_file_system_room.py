"""How much of a file system is free, as CloudWatch says or does not say."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from moto import mock_aws

from stationmaster.aws.file_system_room import FileSystemRoom

ID, GIB = "fs-0123456789abcdef0", 2**30


@pytest.fixture
def cloudwatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with mock_aws():
        yield boto3.client("cloudwatch", "us-west-2")


def report(cloudwatch: Any, gib: float, *, minutes_ago: int, file_system_id: str = ID) -> None:
    """What FSx puts there for each of two disks."""
    for share in (0.25, 0.75):
        cloudwatch.put_metric_data(
            Namespace="AWS/FSx",
            MetricData=[
                {
                    "MetricName": "FreeDataStorageCapacity",
                    "Dimensions": [{"Name": "FileSystemId", "Value": file_system_id}],
                    "Timestamp": datetime.now(UTC) - timedelta(minutes=minutes_ago),
                    "Value": share * gib * GIB,
                    "Unit": "Bytes",
                }
            ],
        )


def room(client: Any) -> int | None:
    return FileSystemRoom(client, now=lambda: datetime.now(UTC)).free_gib(ID)


def test_newest_report_of_all_disks_counts(cloudwatch: Any) -> None:
    report(cloudwatch, 900.0, minutes_ago=9)
    report(cloudwatch, 700.5, minutes_ago=3)
    report(cloudwatch, 5.0, minutes_ago=2, file_system_id="fs-99999999")

    assert room(cloudwatch) == 700


def test_room_without_a_recent_report_is_not_known(cloudwatch: Any) -> None:
    report(cloudwatch, 900.0, minutes_ago=60)

    assert room(cloudwatch) is None


class Refusing:
    """CloudWatch that does not answer."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_metric_statistics(self, **_: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetMetricStatistics"),
        ReadTimeoutError(endpoint_url="https://monitoring"),
    ],
    ids=["denied", "late"],
)
def test_room_that_cannot_be_asked_for_is_not_known(error: Exception) -> None:
    assert room(Refusing(error)) is None
