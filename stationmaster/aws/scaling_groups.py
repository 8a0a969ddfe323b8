"""The Auto Scaling groups behind node groups: they launch another instance for one that is bad.

EKS drains a node whose instance its Auto Scaling group ends. With an unchanged desired capacity the
group launches the next instance from the same launch template, with the same tags, at once.

Sources: EC2 Auto Scaling API reference, TerminateInstanceInAutoScalingGroup; EKS user guide,
"Simplify node lifecycle with managed node groups".
"""

from __future__ import annotations

from typing import Any, Final

from stationmaster.aws.calls import ignoring_gone_or_busy

REPLACE_ACTIONS: Final = ("autoscaling:TerminateInstanceInAutoScalingGroup",)
# Of an instance that is in no group any more (https://github.com/yaybu/touchdown/issues/51), and
# of a group that is busy with another activity.
_GONE: Final = "ValidationError"
_BUSY: Final = ("ScalingActivityInProgress", "ResourceContention")


class ScalingGroups:
    """Replaces instances of Auto Scaling groups."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def replace(self, instance_id: str) -> None:
        """Terminate an instance, for which its group launches another one; one that goes is fine.

        A group that is busy is left to the next call.
        """
        with ignoring_gone_or_busy(f"replacing instance {instance_id}", _GONE, *_BUSY):
            self._client.terminate_instance_in_auto_scaling_group(
                InstanceId=instance_id, ShouldDecrementDesiredCapacity=False
            )
