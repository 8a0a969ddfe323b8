"""The state that the endpoint, its patches and its services share while one endpoint runs.

moto keeps its back ends in module globals, so one process serves one emulated account at a time:
`current()` is its `Emulation`. It knows nothing of Stationmaster.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from stationmaster.local.aws.clock import LifecycleClock
from stationmaster.local.aws.faults import FaultInjector, FirstCalls
from stationmaster.local.aws.observer import AwsObserver

if TYPE_CHECKING:
    from stationmaster.local.aws.clock import Ticker
    from stationmaster.local.aws.event_delivery import RuleDelivery
    from stationmaster.local.aws.iam.identities import Identities
    from stationmaster.local.aws.runtime import Invoker
    from stationmaster.local.aws.streams import StreamPumps
    from stationmaster.local.saved import Saved

_LAUNCH_S: Final = 20


class ScalingActivities:
    """Thread-safe record of the activities of each Auto Scaling group, by its name.

    Source: EC2 Auto Scaling API reference, Activity, and its user guide, "Troubleshoot issues in
    Amazon EC2 Auto Scaling: EC2 instance launch failures".
    """

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


@dataclass
class Emulation:
    """One emulated account in one region."""

    account_id: str
    region: str
    speed: float
    # Of a workflow, in real seconds. What it looks at after a wait costs CPU, which a fast clock
    # would spend on nothing else.
    shortest_wait_s: float
    kubernetes_endpoint: str
    faults: set[str]
    # Of all machines together, which are one; None: each type has its own, as published.
    num_gpus: int | None
    observer: AwsObserver
    clock: LifecycleClock
    injector: FaultInjector
    identities: Identities
    url: str = ""
    # Takes what the next start is to have; None where there is no next one.
    saved: Saved | None = None
    # One lock a service: moto's back ends check and then write, which two threads must not
    # interleave.
    locks: defaultdict[str, threading.RLock] = field(
        default_factory=lambda: defaultdict(threading.RLock)
    )
    # These need the emulation themselves: the endpoint sets them before it accepts requests.
    invoker: Invoker = field(init=False)
    delivery: RuleDelivery = field(init=False)
    streams: StreamPumps = field(init=False)
    ticker: Ticker = field(init=False)

    def __post_init__(self) -> None:
        self.first_calls = FirstCalls(self.faults)
        self.scaling_activities = ScalingActivities()


_current: list[Emulation] = []
_guard = threading.Lock()


def activate(emulation: Emulation) -> None:
    """Make `emulation` the one this process serves.

    Raises:
        RuntimeError: another endpoint still runs in this process.
    """
    with _guard:
        if _current:
            raise RuntimeError(
                f"an AWS endpoint already runs in this process at {_current[0].url}; moto keeps "
                "its state in module globals, so stop that one first or use another process"
            )
        _current.append(emulation)


def deactivate(emulation: Emulation) -> None:
    """Forget `emulation`; threads that still run for it find no current one and end."""
    with _guard:
        if emulation in _current:
            _current.remove(emulation)


def current() -> Emulation:
    """Return the running emulation.

    Raises:
        RuntimeError: no endpoint runs.
    """
    found = running()
    if found is None:
        raise RuntimeError("no AWS endpoint runs in this process; start a LocalAws first")
    return found


def running() -> Emulation | None:
    """Return the running emulation, or None between endpoints."""
    found = _current[:1]
    return found[0] if found else None
