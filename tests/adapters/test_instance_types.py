"""What EC2 says of instance types: offered or not, with how many GPUs, asked once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from moto import mock_aws

from stationmaster.aws.instance_types import InstanceTypes
from stationmaster.domain.errors import PermanentError, StationmasterError, TransientError
from stationmaster.domain.planning.machine_checks import Offer

REGION = "us-west-2"


class Ec2:
    """A client whose questions are counted, and that can be made to fail."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.asked: list[str] = []
        self.failure: Exception | None = None

    def describe_instance_types(self, **arguments: Any) -> Any:
        self.asked += arguments["InstanceTypes"]
        if self.failure is not None:
            raise self.failure
        return self._client.describe_instance_types(**arguments)


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 2, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield Ec2(boto3.client("ec2", REGION))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def types(ec2: Ec2, clock: Clock) -> InstanceTypes:
    return InstanceTypes(ec2, region=REGION, now=clock.now)  # type: ignore[arg-type]  # counted


@pytest.mark.parametrize(
    ("name", "offer"),
    [
        ("p4d.24xlarge", Offer(region=REGION, is_offered=True, num_gpus=8)),
        ("g5.12xlarge", Offer(region=REGION, is_offered=True, num_gpus=4)),
        ("m5.2xlarge", Offer(region=REGION, is_offered=True, num_gpus=0)),
        # No longer offered anywhere.
        ("p3.8xlarge", Offer(region=REGION, is_offered=False, num_gpus=0)),
    ],
)
def test_type_is_described_as_ec2_offers_it_and_asked_once(types, ec2, name, offer):
    assert [types.describe(name), types.describe(name)] == [offer, offer]
    assert ec2.asked == [name]


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (ReadTimeoutError(endpoint_url="https://ec2"), TransientError),
        (
            ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "DescribeInstanceTypes"),
            PermanentError,
        ),
    ],
    ids=["timeout", "refused"],
)
def test_failed_question_is_not_repeated_for_a_minute(types, ec2, clock, failure, error):
    ec2.failure = failure
    with pytest.raises(error, match=r"asking about p4d\.24xlarge"):
        types.describe("p4d.24xlarge")
    ec2.failure = None

    clock.at += timedelta(seconds=59)
    with pytest.raises(StationmasterError, match="EC2 did not answer a moment ago"):
        types.describe("p4d.24xlarge")
    clock.at += timedelta(seconds=1)

    assert types.describe("p4d.24xlarge").num_gpus == 8
    assert len(ec2.asked) == 2
