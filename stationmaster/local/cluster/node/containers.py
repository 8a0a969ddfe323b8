"""The containers of one pod: started, started again by the pod's policy, ended; and from what they
do to the status that clients read.

Used by the pod worker, in the pod's own thread. What happens in other threads (a process ends) is
brought there through `later`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api.conditions import set_condition
from stationmaster.local.cluster.api.metadata import timestamp
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.back_off import duration_text
from stationmaster.local.cluster.events import Level
from stationmaster.local.cluster.labels import training_job_of
from stationmaster.local.cluster.logs import ContainerLog
from stationmaster.local.cluster.node import launch
from stationmaster.local.cluster.node.container import (
    Command,
    ContainerProcess,
    LogError,
    StartError,
)
from stationmaster.local.cluster.node.environment import ConfigError
from stationmaster.local.cluster.node.launch import NodeContext
from stationmaster.local.cluster.node.volumes import MountError

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


class PodContainers:
    """The init containers and the containers of a pod, each with its runs."""

    def __init__(
        self,
        context: NodeContext,
        pod: Object,
        directory: Path,
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._context = context
        self.pod = pod
        """As it was stored last; the pod worker keeps it current."""
        self._directory = directory
        self._later = later
        self._restarts = True
        spec = pod["spec"]
        creating = "PodInitializing" if spec.get("initContainers") else "ContainerCreating"
        self.init = [ContainerRun(c) for c in spec.get("initContainers") or []]
        self.main = [ContainerRun(c, waiting(creating)) for c in spec["containers"]]

    def all(self) -> list[ContainerRun]:
        return [*self.init, *self.main]

    def all_done(self) -> bool:
        if any(run.done and run.terminated and run.terminated["exitCode"] for run in self.init):
            return True
        return all(run.done for run in self.all())

    def have_processes(self) -> bool:
        return any(run.process is not None for run in self.all())

    def due_times(self) -> list[float]:
        """Return when containers that ended are to be started again, by the monotonic clock."""
        return [run.restart_at for run in self.all() if run.restart_at is not None]

    # Starting

    def start_if_due(self, run: ContainerRun, volumes: Mapping[str, Path | None]) -> bool:
        """Start a container that has not started or is due again; False: try again later."""
        if run.process is not None or run.running or run.done or run.cannot_run:
            return True
        if run.restart_at is not None:
            if time.monotonic() < run.restart_at:
                return True
            run.restart_at = None
            run.restart_count += 1
        return self._start(run, volumes)

    def _start(self, run: ContainerRun, volumes: Mapping[str, Path | None]) -> bool:
        image = run.spec.get("image", "")
        if infrastructure.role_of(image) is not None:
            run.state = running_since(timestamp())
            self._event(run, "Normal", "Started", f"Started container {run.name}")
            return True
        if "image-not-pulled" in self._context.faults and training_job_of(self.pod):
            return self._fail_pull(run, image)
        try:
            command = launch.command_of(self._context, self.pod, run.spec, volumes)
        except launch.CannotRunError as exc:
            run.cannot_run = True
            run.state = waiting("CreateContainerError", str(exc))
            self._event(run, "Warning", "Failed", f"Error: {exc}")
            return True
        except (ConfigError, MountError) as exc:
            run.state = waiting("CreateContainerConfigError", str(exc))
            self._event(run, "Warning", "Failed", f"Error: {exc}")
            return False
        pulled = f'Container image "{image}" already present on machine'
        self._event(run, "Normal", "Pulled", pulled)
        self._event(run, "Normal", "Created", f"Created container: {run.name}")
        self._launch(run, command)
        return True

    def _fail_pull(self, run: ContainerRun, image: str) -> bool:
        """Say in turn what a kubelet says of an image that is not there; False: try again later."""
        said = f'failed to resolve reference "{image}": {image}: not found'
        if (run.state.get("waiting") or {}).get("reason") == "ErrImagePull":
            back_off = f'Back-off pulling image "{image}"'
            run.state = waiting("ImagePullBackOff", f"{back_off}: ErrImagePull: {said}")
            self._event(run, "Normal", "BackOff", back_off)
        elif "ImagePullBackOff" not in str(run.state):
            run.state = waiting("ErrImagePull", said)
            self._event(run, "Warning", "Failed", f'Failed to pull image "{image}": {said}')
        return False

    def _launch(self, run: ContainerRun, command: Command) -> None:
        run.previous_log = run.log
        run.log = ContainerLog(self._directory / f"{run.name}.{run.restart_count}.log")
        now, started = timestamp(), time.monotonic()

        def ended(exit_code: int, failure: str) -> None:
            ran_s = time.monotonic() - started
            self._later(lambda: self._exited(run, exit_code, failure, started_at=now, ran_s=ran_s))

        try:
            run.process = ContainerProcess(command, run.log, ended)
        except LogError as exc:
            state_dir = self._context.state_dir
            self._not_started(run, log_refused(128, str(exc), state_dir, started_at=now))
            return
        except StartError as exc:
            message = f"failed to create containerd task: {exc}"
            self._not_started(
                run, terminated(128, started_at=now, reason="StartError", message=message)
            )
            return
        run.process_id = run.process.pid
        run.state = running_since(now)
        self._event(run, "Normal", "Started", f"Started container {run.name}")

    def _not_started(self, run: ContainerRun, state: State) -> None:
        if run.log is not None:
            run.log.end()
        run.state = state
        message = state["terminated"]["message"]
        self._event(run, "Warning", "Failed", f"Error: {message}")
        self._plan_restart(run, 128, ran_s=0.0)

    # Ending

    def stop_restarting(self) -> None:
        """Restart nothing that has ended or ends from now on."""
        self._restarts = False
        for run in self.all():
            run.restart_at = None

    def announce_stop(self) -> None:
        for run in self.all():
            if run.running:
                self._event(run, "Normal", "Killing", f"Stopping container {run.name}")

    def terminate(self) -> None:
        """Ask all processes to end (SIGTERM)."""
        for run in self.all():
            if run.process is not None:
                run.process.terminate()

    def kill(self) -> None:
        """End all processes now (SIGKILL)."""
        for run in self.all():
            if run.process is not None:
                run.process.kill()

    def _exited(
        self, run: ContainerRun, exit_code: int, failure: str, *, started_at: str, ran_s: float
    ) -> None:
        run.process = None
        state_dir = self._context.state_dir
        run.state = terminated(exit_code, started_at=started_at)
        if failure:
            run.state = log_refused(exit_code, failure, state_dir, started_at=started_at)
        self._plan_restart(run, exit_code, ran_s=ran_s)

    def _plan_restart(self, run: ContainerRun, exit_code: int, *, ran_s: float) -> None:
        """Plan the next run, if the policy wants one: at once the first time, then backing off."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        finished = exit_code == 0 and (policy == "OnFailure" or run in self.init)
        ending = not self._restarts or "deletionTimestamp" in self.pod["metadata"]
        if ending or policy == "Never" or finished:
            return
        run.last_state = run.state
        back_off = self._context.back_off
        if back_off.is_forgotten(ran_s):
            run.quick_failures = 0
        run.quick_failures += 1
        if run.quick_failures == 1:
            run.restart_at = time.monotonic()
            return
        delay_s = back_off.delay_s(run.quick_failures - 1)
        run.restart_at = time.monotonic() + back_off.real_s(delay_s)
        run.state, message = backing_off(run, self.pod["metadata"], delay_s)
        self._event(run, "Warning", "BackOff", message)

    def _event(self, run: ContainerRun, level: Level, reason: str, message: str) -> None:
        group = "initContainers" if run in self.init else "containers"
        path = f"spec.{group}{{{run.name}}}"
        self._context.recorder.record(self.pod, level, reason, message, field_path=path)
