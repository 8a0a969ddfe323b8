"""CloudWatch: how much of an FSx for Lustre file system is free, as of a minute or two ago.

FSx itself does not say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from stationmaster.aws.calls import aws_call
from stationmaster.domain.errors import StationmasterError

ROOM_ACTIONS: Final = ("cloudwatch:GetMetricStatistics",)
# Source: FSx for Lustre user guide, "Amazon FSx for Lustre metrics and dimensions": the sum over
# the disks, once a minute.
_METRIC: Final = "FreeDataStorageCapacity"
_PERIOD_S: Final = 60
_BACK: Final = timedelta(minutes=15)
_GIB: Final = 2**30

logger = logging.getLogger(__name__)


class FileSystemRoom:
    """Asks CloudWatch about file systems."""

    def __init__(self, client: Any, *, now: Callable[[], datetime]) -> None:
        self._cloudwatch = client
        self._now = now

    def free_gib(self, file_system_id: str) -> int | None:
        """Return whole GiB that are free; None where CloudWatch does not say, or not in time."""
        now = self._now()
        try:
            with aws_call(f"asking how much of {file_system_id} is free"):
                answer = self._cloudwatch.get_metric_statistics(
                    Namespace="AWS/FSx",
                    MetricName=_METRIC,
                    Dimensions=[{"Name": "FileSystemId", "Value": file_system_id}],
                    StartTime=now - _BACK,
                    EndTime=now,
                    Period=_PERIOD_S,
                    Statistics=["Sum"],
                )
        except StationmasterError as error:
            # A person's command does not fail because a side question did.
            logger.warning("free room not known", extra={"reason": str(error)})
            return None
        points = answer.get("Datapoints", [])
        newest = max(points, key=lambda point: point["Timestamp"], default=None)
        return None if newest is None else int(newest["Sum"] // _GIB)
