"""What the Auto Scaling group of a node group has tried: why its instances are not launched.

EKS leaves a node group in CREATING while its Auto Scaling group cannot launch an instance, and
gives up only late. Each attempt is an activity of the group, with EC2's answer.

Source: EC2 Auto Scaling user guide, "Troubleshoot issues in Amazon EC2 Auto Scaling", and its API
reference, DescribeScalingActivities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import takewhile
from typing import Any, Final

from stationmaster.aws.calls import AwsConflict, aws_call
from stationmaster.aws.node_groups import NodeGroup

SCALING_ACTIONS: Final = ("autoscaling:DescribeScalingActivities",)
_FAILED: Final = "Failed"
# What has not come to its end says nothing yet; nor does what somebody cancelled.
_ENDED: Final = (_FAILED, "Successful")


class ScalingActivities:
    """Reads the attempts of Auto Scaling groups to launch instances."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def add_to(self, found: NodeGroup, *, since: datetime | None = None) -> NodeGroup:
        """Add to the node group why its newest attempts failed, where none has succeeded since.

        Attempts before `since` do not count. Health issues that EKS reports are kept: they say the
        same.
        """
        failures = [
            each
            for name in found.scaling_groups
            for each in takewhile(_has_failed, filter(_has_ended, self._activities(name)))
            if since is None or each["StartTime"] >= since
        ]
        if not failures:
            return found
        # Instances that are asked for together fail together: that is one attempt.
        attempts = len({each["StartTime"] for each in failures})
        said = str(failures[0].get("StatusMessage", ""))
        return found.model_copy(
            update={
                "failure": found.failure or said,
                "failed_attempts": attempts,
                "failed_at": max(each["StartTime"] for each in failures),
            }
        )

    def _activities(self, name: str) -> Iterable[Mapping[str, Any]]:
        """Yield activities, the newest first, as AWS lists them; none of a group that is gone."""
        with (
            suppress(AwsConflict),
            aws_call(f"reading the activities of Auto Scaling group {name}", "ValidationError"),
        ):
            activities: list[Mapping[str, Any]] = self._client.describe_scaling_activities(
                AutoScalingGroupName=name, MaxRecords=20
            )["Activities"]
            return activities
        return []


def _has_ended(activity: Mapping[str, Any]) -> bool:
    return activity.get("StatusCode") in _ENDED


def _has_failed(activity: Mapping[str, Any]) -> bool:
    return activity.get("StatusCode") == _FAILED
