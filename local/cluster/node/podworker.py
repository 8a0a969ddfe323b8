"""One pod on its node: volumes, init containers, containers, restarts, deadline, end.

Started by the kubelet, one thread a pod. It sleeps until something happens to the pod (a process
ended, the object changed, a back-off is over) and writes the pod's status and events. Readiness
probes are not run: a container is ready as soon as it has started.
"""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from local.cluster import infrastructure
from local.cluster.api import resources
from local.cluster.api.metadata import clone, timestamp
from local.cluster.api.resources import Object
from local.cluster.events import Level
from local.cluster.labels import JOB_NAME_LABEL
from local.cluster.logs import ContainerLog
from local.cluster.node import launch, podstatus
from local.cluster.node.container import Command, ContainerProcess, LogError, StartError
from local.cluster.node.environment import LOCAL_ADDRESS, ConfigError
from local.cluster.node.launch import NodeContext
from local.cluster.node.podstatus import (
    ContainerRun,
    pod_status,
    running_since,
    terminated,
    waiting,
)
from local.cluster.node.volumes import MountError

logger = logging.getLogger(__name__)

# A real kubelet begins at 10 s and ends at 5 min; people who watch a laptop are less patient.
FIRST_BACK_OFF_S, LAST_BACK_OFF_S = 1.0, 10.0
# A container that ran this long starts its back-off anew (10 min in a real kubelet).
BACK_OFF_FORGET_S = 60.0
_RETRY_S = 1.0
_COMPONENT_START_S = 0.2
_WAIT_FOR_MASTER = "init-pytorch"


class PodWorker:
    """Runs one pod until it is gone."""

    def __init__(
        self,
        context: NodeContext,
        pod: Object,
        on_end: Callable[[], None],
    ) -> None:
        self._context = context
        self._pod = pod
        self._on_end = on_end
        self.uid: str = pod["metadata"]["uid"]
        self._directory = context.state_dir / "pods" / self.uid
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        spec = pod["spec"]
        creating = "PodInitializing" if spec.get("initContainers") else "ContainerCreating"
        self.init = [ContainerRun(c) for c in spec.get("initContainers") or []]
        self.main = [ContainerRun(c, waiting(creating)) for c in spec["containers"]]
        self._volumes: dict[str, Path | None] | None = None
        self._failure: tuple[str, str] | None = None
        self._kill_at: float | None = None
        self._started_at = time.monotonic()
        self._next_try = 0.0
        self._reported = False
        self._gone = False
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=f"pod-{self.uid[:8]}", daemon=True)

    # Called from other threads

    def start(self) -> None:
        self._thread.start()

    def changed(self, pod: Object) -> None:
        """The stored pod changed."""

        def take() -> None:
            self._pod = pod

        self._inbox.put(take)

    def removed(self) -> None:
        """The pod object is gone: its processes go at once."""

        def take() -> None:
            self._gone = True
            self._kill_all()

        self._inbox.put(take)

    def shut_down(self, grace_s: float) -> None:
        """The node stops: end the processes politely, then for good; write nothing any more."""

        def take() -> None:
            self._gone = True
            for run in self._with_process():
                run.process.terminate()  # type: ignore[union-attr]  # _with_process says so
            self._kill_at = time.monotonic() + grace_s

        self._inbox.put(take)

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # The loop

    def _run(self) -> None:
        try:
            while not self._finished:
                try:
                    self._advance()
                except Exception:
                    # The boundary of the thread: the pod is reported, the node lives on.
                    logger.exception("pod worker failed", extra={"pod": self.uid})
                    self._fail("KubeletError", "the local kubelet failed on this pod; see its log")
                if not self._finished:
                    self._sleep()
        finally:
            self._kill_all()
            self._context.gpus.release(self.uid)
            shutil.rmtree(self._directory / "volumes", ignore_errors=True)
            self._on_end()

    def _sleep(self) -> None:
        """Wait for the next message or the next due time, and take in all messages."""
        due = self._due_at()
        try:
            if due is None:
                message = self._inbox.get()
            else:
                message = self._inbox.get(timeout=max(0.0, due - time.monotonic()))
            while message is not None:
                message()
                message = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _due_at(self) -> float | None:
        times = [run.restart_at for run in [*self.init, *self.main]]
        times.append(self._kill_at)
        if self._next_try > time.monotonic():
            times.append(self._next_try)
        deadline = self._deadline()
        if not self._with_process() and self._all_done():
            deadline = None
        return min((moment for moment in [*times, deadline] if moment is not None), default=None)

    def _deadline(self) -> float | None:
        seconds = self._pod["spec"].get("activeDeadlineSeconds")
        if seconds is None or self._failure is not None:
            return None
        return self._started_at + float(seconds)

    def _advance(self) -> None:
        if self._gone:
            self._finished = not self._with_process()
            self._kill_when_due()
            return
        if "deletionTimestamp" in self._pod["metadata"]:
            self._terminate()
            return
        if self._failure is None and not self._all_done():
            self._check_deadline()
            self._start_what_can()
        self._kill_when_due()
        self._report()

    def _check_deadline(self) -> None:
        deadline = self._deadline()
        if deadline is not None and time.monotonic() >= deadline:
            message = "Pod was active on the node longer than the specified deadline"
            self._event("Normal", "DeadlineExceeded", message)
            self._fail("DeadlineExceeded", message)

    def _fail(self, reason: str, message: str) -> None:
        self._failure = (reason, message)
        for run in [*self.init, *self.main]:
            run.restart_at = None
        self._kill_all()

    def _all_done(self) -> bool:
        if any(run.done and run.terminated and run.terminated["exitCode"] for run in self.init):
            return True
        return all(run.done for run in [*self.init, *self.main])

    # Starting

    def _start_what_can(self) -> None:
        if time.monotonic() < self._next_try or not self._may_start():
            return
        if self._volumes is None and not self._mount():
            return
        for run in self.init:
            if not run.done:
                if run.name == _WAIT_FOR_MASTER:
                    self._await_master(run)
                else:
                    self._start_if_due(run)
                if not run.done:
                    return
        for run in self.main:
            self._start_if_due(run)

    def _may_start(self) -> bool:
        """Cluster components take a moment to start; a fault can hold them back for ever."""
        held = infrastructure.is_plugin_or_relay(self._pod)
        if held and "plugin-never-ready" in self._context.faults:
            self._next_try = time.monotonic() + _RETRY_S
            return False
        component = infrastructure.pod_role(self._pod) is not None
        ready_at = self._started_at + _COMPONENT_START_S
        if component and time.monotonic() < ready_at:
            self._next_try = ready_at
            return False
        return True

    def _mount(self) -> bool:
        try:
            self._volumes = launch.volumes_of(self._context, self._pod, self._directory)
        except MountError as exc:
            self._event("Warning", "FailedMount", str(exc))
            self._next_try = time.monotonic() + _RETRY_S
            return False
        return True

    def _await_master(self, run: ContainerRun) -> None:
        """The operator's init container looks up the master's service: done once that exists."""
        job = (self._pod["metadata"].get("labels") or {}).get(JOB_NAME_LABEL, "")
        namespace = self._pod["metadata"]["namespace"]
        if self._context.objects.find(resources.SERVICES, namespace, f"{job}-master-0") is None:
            self._next_try = time.monotonic() + 0.1
            return
        run.state = terminated(0, started_at=timestamp())

    def _start_if_due(self, run: ContainerRun) -> None:
        if run.process is not None or run.running or run.done or run.cannot_run:
            return
        if run.restart_at is not None:
            if time.monotonic() < run.restart_at:
                return
            run.restart_at = None
            run.restart_count += 1
        self._start_container(run)

    def _start_container(self, run: ContainerRun) -> None:
        image = run.spec.get("image", "")
        if infrastructure.role_of(image) is not None:
            run.state = running_since(timestamp())
            self._container_event(run, "Normal", "Started", f"Started container {run.name}")
            return
        try:
            command = launch.command_of(self._context, self._pod, run.spec, self._volumes or {})
        except launch.CannotRunError as exc:
            run.cannot_run = True
            run.state = waiting("CreateContainerError", str(exc))
            self._container_event(run, "Warning", "Failed", f"Error: {exc}")
            return
        except (ConfigError, MountError) as exc:
            run.state = waiting("CreateContainerConfigError", str(exc))
            self._container_event(run, "Warning", "Failed", f"Error: {exc}")
            self._next_try = time.monotonic() + _RETRY_S
            return
        self._container_event(
            run, "Normal", "Pulled", f'Container image "{image}" already present on machine'
        )
        self._container_event(run, "Normal", "Created", f"Created container: {run.name}")
        self._launch(run, command)

    def _launch(self, run: ContainerRun, command: Command) -> None:
        run.previous_log = run.log
        run.log = ContainerLog(self._directory / f"{run.name}.{run.restart_count}.log")
        now, started = timestamp(), time.monotonic()

        def ended(exit_code: int, failure: str) -> None:
            ran_s = time.monotonic() - started
            self._inbox.put(
                lambda: self._exited(run, exit_code, failure, started_at=now, ran_s=ran_s)
            )

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
        self._container_event(run, "Normal", "Started", f"Started container {run.name}")

    def _not_started(self, run: ContainerRun, state: podstatus.State) -> None:
        if run.log is not None:
            run.log.end()
        run.state = state
        message = state["terminated"]["message"]
        self._container_event(run, "Warning", "Failed", f"Error: {message}")
        self._decide_restart(run, 128, ran_s=0.0)

    # Ending

    def _exited(
        self, run: ContainerRun, exit_code: int, failure: str, *, started_at: str, ran_s: float
    ) -> None:
        run.process = None
        state_dir = self._context.state_dir
        run.state = terminated(exit_code, started_at=started_at)
        if failure:
            run.state = podstatus.log_refused(exit_code, failure, state_dir, started_at=started_at)
        if not self._gone and self._failure is None:
            self._decide_restart(run, exit_code, ran_s=ran_s)

    def _decide_restart(self, run: ContainerRun, exit_code: int, *, ran_s: float) -> None:
        """Plan the next run, if the policy wants one: at once the first time, then backing off."""
        policy = self._pod["spec"].get("restartPolicy", "Always")
        finished = exit_code == 0 and (policy == "OnFailure" or run in self.init)
        if "deletionTimestamp" in self._pod["metadata"] or policy == "Never" or finished:
            return
        run.last_state = run.state
        if ran_s >= BACK_OFF_FORGET_S:
            run.quick_failures = 0
        run.quick_failures += 1
        if run.quick_failures == 1:
            run.restart_at = time.monotonic()
            return
        delay_s = min(FIRST_BACK_OFF_S * 2 ** (run.quick_failures - 2), LAST_BACK_OFF_S)
        run.restart_at = time.monotonic() + delay_s
        run.state, message = podstatus.backing_off(run, self._pod["metadata"], delay_s)
        self._container_event(run, "Warning", "BackOff", message)

    def _terminate(self) -> None:
        """The pod is being deleted: TERM, KILL after the grace, then the object goes."""
        if self._kill_at is None:
            grace = float(self._pod["metadata"].get("deletionGracePeriodSeconds", 30))
            self._kill_at = time.monotonic() + grace
            for run in [*self.init, *self.main]:
                run.restart_at = None
                if run.running:
                    self._container_event(
                        run, "Normal", "Killing", f"Stopping container {run.name}"
                    )
            for run in self._with_process():
                run.process.terminate()  # type: ignore[union-attr]  # _with_process says so
        self._kill_when_due()
        if self._with_process():
            return
        for run in self.main:
            if run.running:
                run.state = terminated(0, started_at=run.state["running"]["startedAt"])
        self._report()
        metadata = self._pod["metadata"]
        self._context.objects.remove_now(
            resources.PODS, metadata["namespace"], metadata["name"], self.uid
        )
        self._finished = True

    def _kill_when_due(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = time.monotonic() + 1.0
            self._kill_all()

    def _kill_all(self) -> None:
        for run in self._with_process():
            run.process.kill()  # type: ignore[union-attr]  # _with_process says so

    def _with_process(self) -> list[ContainerRun]:
        return [run for run in [*self.init, *self.main] if run.process is not None]

    # Reporting

    def _report(self) -> None:
        metadata = self._pod["metadata"]

        def change(pod: Object) -> None:
            pod["status"] = clone(
                pod_status(
                    pod.get("status") or {},
                    self.init,
                    self.main,
                    address=LOCAL_ADDRESS,
                    failure=self._failure,
                )
            )

        self._context.objects.modify(
            resources.PODS, metadata["namespace"], metadata["name"], change, uid=self.uid
        )

    def _event(self, level: Level, reason: str, message: str, field_path: str = "") -> None:
        self._context.recorder.record(self._pod, level, reason, message, field_path=field_path)

    def _container_event(self, run: ContainerRun, level: Level, reason: str, message: str) -> None:
        group = "initContainers" if run in self.init else "containers"
        self._event(level, reason, message, f"spec.{group}{{{run.name}}}")
