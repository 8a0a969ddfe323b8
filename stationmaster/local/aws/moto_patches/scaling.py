"""Auto Scaling: activities and replacements in the groups behind EKS's node groups.

moto 5.2.5 lists no activities, and knows nothing of the groups that EKS makes.
"""

from __future__ import annotations

from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult

from stationmaster.local.aws.emulation import current


def _describe(self: Any) -> ActionResult:
    name = self._get_param("AutoScalingGroupName")
    most = int(self._get_param("MaxRecords") or 100)
    return ActionResult({"Activities": current().scaling_activities.of(name)[:most]})


def _terminate(self: Any) -> ActionResult:
    """Terminate an instance for another one: a node group's least size is its size.

    Source: EC2 Auto Scaling API reference, TerminateInstanceInAutoScalingGroup; the words of the
    second refusal are from https://github.com/yaybu/touchdown/issues/51.
    """
    if str(self._get_param("ShouldDecrementDesiredCapacity")).lower() != "false":
        raise ValidationError(
            "Terminating instance without replacement will violate group's min size constraint."
        )
    instance_id = self._get_param("InstanceId")
    activities = current().scaling_activities
    name = activities.replace(instance_id)
    if name is None:
        raise ValidationError(
            f"Instance Id not found - No managed instance found for instance ID: {instance_id}"
        )
    return ActionResult({"Activity": activities.of(name)[0]})


def apply() -> None:
    """List what the emulated EKS has recorded, and let it replace instances."""
    AutoScalingResponse.describe_scaling_activities = _describe
    AutoScalingResponse.terminate_instance_in_auto_scaling_group = _terminate
