"""EC2's own word on an instance type in the region: whether it is offered, and with how many GPUs.

The bot asks while a person waits, so it asks quickly, and once for each type: a warm function
remembers. After a question that failed it asks nothing for a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import AwsNotFound, aws_call
from stationmaster.domain.errors import StationmasterError, TransientError
from stationmaster.domain.planning.machine_checks import Offer

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_PAUSE: Final = timedelta(seconds=60)


class InstanceTypes:
    """Reads what the region offers."""

    def __init__(self, client: EC2Client, *, region: str, now: Callable[[], datetime]) -> None:
        self._client = client
        self._region = region
        self._now = now
        self._known: dict[str, Offer] = {}
        self._paused_until: datetime | None = None

    def describe(self, name: str) -> Offer:
        """Return what EC2 says of a type; it is asked once.

        Raises:
            TransientError, PermanentError: EC2 did not answer, or refused to, now or within the
                last minute.
        """
        if name in self._known:
            return self._known[name]
        if self._paused_until is not None and self._now() < self._paused_until:
            raise TransientError(f"asking about {name}: EC2 did not answer a moment ago")
        try:
            offer = self._known[name] = self._ask(name)
        except StationmasterError:
            self._paused_until = self._now() + _PAUSE
            raise
        return offer

    def _ask(self, name: str) -> Offer:
        try:
            with aws_call(f"asking about {name}"):
                answer = self._client.describe_instance_types(InstanceTypes=[name])  # type: ignore[list-item]  # the stubs list literal names
        except AwsNotFound:
            return Offer(region=self._region, is_offered=False, num_gpus=0)
        gpus = [
            gpu
            for described in answer["InstanceTypes"]
            for gpu in described.get("GpuInfo", {}).get("Gpus", [])
        ]
        return Offer(
            region=self._region,
            is_offered=True,
            num_gpus=sum(gpu.get("Count", 0) for gpu in gpus),
        )
