"""From what a pod's containers do to the status that clients read.

Used by the pod worker. Pure: states in, status out.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stationmaster.local.cluster.api.conditions import set_condition
from stationmaster.local.cluster.api.metadata import timestamp
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.back_off import duration_text
from stationmaster.local.cluster.logs import ContainerLog
from stationmaster.local.cluster.node.container import ContainerProcess

State = dict[str, Any]
# What the supervisor's sentence ends with when the log's disk is full.
_NO_ROOM = tuple(
    os.strerror(number).lower() for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
)


def waiting(reason: str, message: str = "") -> State:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


@dataclass
class ContainerRun:
    """One container of a pod through all its runs."""

    spec: Mapping[str, Any]
    state: State = field(default_factory=lambda: waiting("ContainerCreating"))
    last_state: State = field(default_factory=dict)
    restart_count: int = 0
    process: ContainerProcess | None = None
    process_id: int = 0
    log: ContainerLog | None = None
    previous_log: ContainerLog | None = None
    restart_at: float | None = None  # monotonic time of the next start
    quick_failures: int = 0  # ends in a row that came too soon
    cannot_run: bool = False  # refused for good: neither started nor restarted

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def terminated(self) -> Mapping[str, Any] | None:
        return self.state.get("terminated")

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def done(self) -> bool:
        """Whether it has ended and will not be started again."""
        return self.terminated is not None and self.restart_at is None

    def status(self) -> State:
        """Return the `containerStatuses` entry."""
        shown: State = {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "ready": self.running,
            "started": self.running,
            "restartCount": self.restart_count,
            "state": self.state,
            "lastState": self.last_state,
        }
        if self.process_id:
            # Where containerd names a container, this runtime names the process.
            shown["containerID"] = f"process://{self.process_id}"
        return shown


def running_since(moment: str) -> State:
    return {"running": {"startedAt": moment}}


def terminated(exit_code: int, *, started_at: str, reason: str = "", message: str = "") -> State:
    ended: State = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if exit_code == 0 else "Error"),
        "startedAt": started_at,
        "finishedAt": timestamp(),
    }
    if message:
        ended["message"] = message
    return {"terminated": ended}


def backing_off(
    run: ContainerRun, metadata: Mapping[str, Any], delay_s: float
) -> tuple[State, str]:
    """Return the state of a container that restarts after `delay_s`, and its event.

    The seconds are those of a real cluster.
    """
    pod = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
    state = waiting(
        "CrashLoopBackOff",
        f"back-off {duration_text(delay_s)} restarting failed container={run.name} pod={pod}",
    )
    return state, f"Back-off restarting failed container {run.name} in pod {pod}"


def log_refused(exit_code: int, cause: str, state_dir: Path, *, started_at: str) -> State:
    """Return how a container ended whose log took no more."""
    message = cause
    if cause.endswith(_NO_ROOM):
        message += f"; free space in {state_dir}"
    return terminated(exit_code, started_at=started_at, reason="LogNotWritten", message=message)


def phase_of(init: Sequence[ContainerRun], main: Sequence[ContainerRun]) -> str:
    """Return the phase, by the rules of the kubelet's getPhase."""
    failed_init = [run for run in init if run.done and (run.terminated or {}).get("exitCode")]
    if failed_init:
        return "Failed"
    if any(not run.done for run in init):
        return "Pending"
    if all(run.done for run in main):
        codes = [(run.terminated or {}).get("exitCode") for run in main]
        return "Succeeded" if not any(codes) else "Failed"
    never_started = any("waiting" in run.state and not run.last_state for run in main)
    return "Pending" if never_started else "Running"


def pod_status(
    current: Mapping[str, Any],
    init: Sequence[ContainerRun],
    main: Sequence[ContainerRun],
    *,
    address: str,
    failure: tuple[str, str] | None,
) -> Object:
    """Return the whole status; `failure` is (reason, message) of the pod itself."""
    phase = "Failed" if failure else phase_of(init, main)
    status: Object = {**current, "phase": phase}
    status.setdefault("startTime", timestamp())
    status.update({"hostIP": address, "hostIPs": [{"ip": address}]})
    status.update({"podIP": address, "podIPs": [{"ip": address}]})
    if failure:
        status["reason"], status["message"] = failure
    initialised = all(run.done and not (run.terminated or {}).get("exitCode") for run in init)
    ready = phase == "Running" and all(run.running for run in main)
    ended = phase in ("Succeeded", "Failed")
    conditions = {
        "PodReadyToStartContainers": (not ended, ""),
        "Initialized": (initialised, "PodCompleted" if ended else ""),
        "Ready": (ready, _not_ready_reason(phase, ready)),
        "ContainersReady": (ready, _not_ready_reason(phase, ready)),
        "PodScheduled": (True, ""),
    }
    status["conditions"] = list(current.get("conditions") or [])
    for kind, (holds, reason) in conditions.items():
        set_condition(status, kind, reason, "", value=str(holds))
    if init:
        status["initContainerStatuses"] = [_init_status(run) for run in init]
    status["containerStatuses"] = [run.status() for run in main]
    return status


def _init_status(run: ContainerRun) -> State:
    status = run.status()
    status["ready"] = run.done and (run.terminated or {}).get("exitCode") == 0
    return status


def _not_ready_reason(phase: str, ready: bool) -> str:
    if ready:
        return ""
    return "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
