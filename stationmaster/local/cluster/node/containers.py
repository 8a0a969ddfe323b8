"""The containers of one pod: started, started again by the pod's policy, ended.

Used by the pod worker, in the pod's own thread. What happens in other threads (a process ends) is
brought there through `later`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api.metadata import timestamp
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.events import Level
from stationmaster.local.cluster.labels import training_job_of
from stationmaster.local.cluster.logs import ContainerLog
from stationmaster.local.cluster.node import launch, podstatus
from stationmaster.local.cluster.node.container import (
    Command,
    ContainerProcess,
    LogError,
    StartError,
)
from stationmaster.local.cluster.node.environment import ConfigError
from stationmaster.local.cluster.node.launch import NodeContext
from stationmaster.local.cluster.node.podstatus import (
    ContainerRun,
    running_since,
    terminated,
    waiting,
)
from stationmaster.local.cluster.node.volumes import MountError


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
            self._not_started(run, podstatus.log_refused(128, str(exc), state_dir, started_at=now))
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

    def _not_started(self, run: ContainerRun, state: podstatus.State) -> None:
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
            run.state = podstatus.log_refused(exit_code, failure, state_dir, started_at=started_at)
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
        run.state, message = podstatus.backing_off(run, self.pod["metadata"], delay_s)
        self._event(run, "Warning", "BackOff", message)

    def _event(self, run: ContainerRun, level: Level, reason: str, message: str) -> None:
        group = "initContainers" if run in self.init else "containers"
        path = f"spec.{group}{{{run.name}}}"
        self._context.recorder.record(self.pod, level, reason, message, field_path=path)
