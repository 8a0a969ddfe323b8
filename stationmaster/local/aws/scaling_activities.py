"""What the Auto Scaling groups behind EKS's node groups have tried; moto has no activities.

Source: EC2 Auto Scaling API reference, Activity, and its user guide, "Troubleshoot issues in Amazon
EC2 Auto Scaling: EC2 instance launch failures".
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

_LAUNCH_S: Final = 20


class ScalingActivities:
    """Thread-safe record of the activities of each Auto Scaling group, by its name."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._by_group: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self.replace: Callable[[str], str | None] = lambda instance_id: None
        """Terminates an instance of a group and launches another; returns the group's name, or
        None.
        """

    def of(self, group: str) -> list[dict[str, Any]]:
        """Return those of a group, the newest first."""
        with self._guard:
            return list(reversed(self._by_group.get(group, [])))

    def launched(self, group: str, instance_id: str, *, at: datetime, subnet: Any) -> None:
        """Record that an instance was launched."""
        self._add(group, f"Launching a new EC2 instance: {instance_id}", "Successful", at, subnet)

    def terminated(self, group: str, instance_id: str, *, at: datetime, subnet: Any) -> None:
        """Record that an instance is being terminated, as somebody asked."""
        self._add(group, f"Terminating EC2 instance: {instance_id}", "InProgress", at, subnet)

    def failed(self, group: str, why: str, *, at: datetime, subnet: Any) -> None:
        """Record that instances could not be launched."""
        told = f"Launching a new EC2 instance.  Status Reason: {why}"
        self._add(group, told, "Failed", at, subnet, StatusMessage=why)

    def _add(
        self,
        group: str,
        description: str,
        status: str,
        at: datetime,
        subnet: Any,
        **more: str,
    ) -> None:
        where = {"Subnet ID": subnet.id, "Availability Zone": subnet.availability_zone}
        activity = {
            "ActivityId": str(uuid.uuid4()),
            "AutoScalingGroupName": group,
            "Description": description,
            "Cause": f"At {at:%Y-%m-%dT%H:%M:%SZ} an instance was started in response to a "
            "difference between desired and actual capacity.",
            "StartTime": at,
            "EndTime": at + timedelta(seconds=_LAUNCH_S),
            "StatusCode": status,
            "Progress": 100,
            "Details": json.dumps(where),
            **more,
        }
        with self._guard:
            self._by_group[group].append(activity)
