"""The Auto Scaling groups behind node groups: what they have tried, and new instances for bad ones.

EKS leaves a node group in CREATING while its Auto Scaling group cannot launch an instance, and
gives up only late. Each attempt is an activity of the group, with EC2's answer.

EKS drains a node whose instance its Auto Scaling group ends. With an unchanged desired capacity the
group launches the next instance from the same launch template, with the same tags, at once.

Sources: EC2 Auto Scaling user guide, "Troubleshoot issues in Amazon EC2 Auto Scaling", and its API
reference, DescribeScalingActivities and TerminateInstanceInAutoScalingGroup; EKS user guide,
"Simplify node lifecycle with managed node groups".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import takewhile
from typing import Any, Final

from stationmaster.aws.calls import Adapter, AwsConflict, aws_call, ignoring_gone_or_busy
from stationmaster.aws.node_groups import NodeGroup

SCALING_ACTIONS: Final = ("autoscaling:DescribeScalingActivities",)
REPLACE_ACTIONS: Final = ("autoscaling:TerminateInstanceInAutoScalingGroup",)
# Of an instance that is in no group any more (https://github.com/yaybu/touchdown/issues/51), and
# of a group that is busy with another activity.
_GONE: Final = "ValidationError"
_BUSY: Final = ("ScalingActivityInProgress", "ResourceContention")
_FAILED: Final = "Failed"
# What has not come to its end says nothing yet; nor does what somebody cancelled.
_ENDED: Final = (_FAILED, "Successful")


class ScalingGroups(Adapter):
    """Reads the attempts of Auto Scaling groups to launch instances, and replaces instances."""

    def add_to(self, found: NodeGroup, *, since: datetime | None = None) -> NodeGroup:
        """Add to the node group why its newest attempts failed, where none has succeeded since.

        Attempts before `since` do not count. Health issues that EKS reports are kept: they say the
        same.
        """
        failures = [
            each
            for name in found.scaling_groups
            for each in takewhile(
                lambda ended: ended["StatusCode"] == _FAILED,
                (one for one in self._activities(name) if one.get("StatusCode") in _ENDED),
            )
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

    def replace(self, instance_id: str) -> None:
        """Terminate an instance, for which its group launches another one; one that goes is fine.

        A group that is busy is left to the next call.
        """
        with ignoring_gone_or_busy(f"replacing instance {instance_id}", _GONE, *_BUSY):
            self._client.terminate_instance_in_auto_scaling_group(
                InstanceId=instance_id, ShouldDecrementDesiredCapacity=False
            )
