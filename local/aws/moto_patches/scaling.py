"""Auto Scaling: the activities of the groups behind EKS's node groups; moto 5.2.5 lists none."""

from __future__ import annotations

from typing import Any

from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult

from local.aws.emulation import current


def _describe(self: Any) -> ActionResult:
    name = self._get_param("AutoScalingGroupName")
    most = int(self._get_param("MaxRecords") or 100)
    return ActionResult({"Activities": current().scaling_activities.of(name)[:most]})


def apply() -> None:
    """List what the emulated EKS has recorded."""
    AutoScalingResponse.describe_scaling_activities = _describe
