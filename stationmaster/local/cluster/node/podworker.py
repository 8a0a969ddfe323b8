"""One pod on its node: volumes, init containers, containers, restarts, deadline, end.

Each has one thread, which sleeps until something happens to the pod (a process ended, the object
changed, a back-off is over) and writes the pod's status and events. Readiness probes are not run: a
container is ready as soon as it has started.
"""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.metadata import clone, timestamp
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.selectors import match_labels
from stationmaster.local.cluster.labels import JOB_NAME_LABEL, WAIT_FOR_MASTER
from stationmaster.local.cluster.node import launch
from stationmaster.local.cluster.node.containers import (
    ContainerRun,
    PodContainers,
    pod_status,
    terminated,
)
from stationmaster.local.cluster.node.environment import LOCAL_ADDRESS
from stationmaster.local.cluster.node.launch import NodeContext
from stationmaster.local.cluster.node.volumes import MountError

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_COMPONENT_START_S = 0.2


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
        self.node: str = pod["spec"]["nodeName"]
        self._directory = context.state_dir / "pods" / self.uid
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._containers = PodContainers(context, pod, self._directory, self._inbox.put)
        self._volumes: dict[str, Path | None] | None = None
        self._failure: tuple[str, str] | None = None
        self._kill_at: float | None = None
        self._started_at = time.monotonic()
        # When to look again without a message; a time that has passed is still to be acted on.
        self._next_try: float | None = None
        self._gone = False
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=f"pod-{self.uid[:8]}", daemon=True)

    def runs(self) -> list[ContainerRun]:
        """Return every container of the pod, those that initialise it first."""
        return self._containers.all()

    def processes(self) -> list[str]:
        """Return the processes of its containers that have not ended."""
        pod = self._pod["metadata"]["name"]
        return [f"process {process_id} of pod {pod}" for process_id in self.process_ids()]

    def process_ids(self) -> list[int]:
        """Return the ids of its containers' processes that have not ended."""
        return [run.process_id for run in self._containers.all() if run.process is not None]

    # Called from other threads

    def start(self) -> None:
        self._thread.start()

    def changed(self, pod: Object) -> None:
        """Take in a change of the stored pod."""

        def take() -> None:
            self._pod = self._containers.pod = pod

        self._inbox.put(take)

    def removed(self) -> None:
        """End the processes at once: the pod object or the node is gone."""

        def take() -> None:
            self._gone = True
            self._containers.stop_restarting()
            self._containers.kill()

        self._inbox.put(take)

    def shut_down(self, grace_s: float) -> None:
        """End the processes with the node, politely, then for good; write nothing more."""

        def take() -> None:
            self._gone = True
            self._containers.stop_restarting()
            self._containers.terminate()
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
            self._containers.kill()
            self._context.gpus.release(self.uid)
            shutil.rmtree(self._directory / "volumes", ignore_errors=True)
            self._on_end()

    def _sleep(self) -> None:
        """Wait for the next message or due time, and handle all messages."""
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
        times = [*self._containers.due_times(), self._kill_at, self._next_try]
        return min((moment for moment in times if moment is not None), default=None)

    def _advance(self) -> None:
        if self._next_try is not None and time.monotonic() >= self._next_try:
            self._next_try = None
        if self._gone:
            self._finished = not self._containers.have_processes()
            self._kill_when_due()
            return
        if "deletionTimestamp" in self._pod["metadata"]:
            self._terminate()
            return
        if self._failure is None and not self._containers.all_done():
            self._start_what_can()
        self._kill_when_due()
        self._report()

    def _fail(self, reason: str, message: str) -> None:
        self._failure = (reason, message)
        self._containers.stop_restarting()
        self._containers.kill()

    # Starting

    def _start_what_can(self) -> None:
        if self._next_try is not None or not self._may_start():
            return
        if self._volumes is None and not self._mount():
            return
        for run in self._containers.init:
            if not run.done:
                if run.name == WAIT_FOR_MASTER:
                    self._await_master(run)
                else:
                    self._start(run)
                if not run.done:
                    return
        for run in self._containers.main:
            self._start(run)

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
            self._context.recorder.record(self._pod, "Warning", "FailedMount", str(exc))
            self._next_try = time.monotonic() + _RETRY_S
            return False
        return True

    def _await_master(self, run: ContainerRun) -> None:
        """Wait as the operator's init container does, until the master's name resolves.

        That of a headless Service has the addresses of its ready pods.
        """
        job = (self._pod["metadata"].get("labels") or {}).get(JOB_NAME_LABEL, "")
        objects, namespace = self._context.objects, self._pod["metadata"]["namespace"]
        service = objects.find(resources.SERVICES, namespace, f"{job}-master-0")
        if service is None or not any(
            infrastructure.is_ready(pod)
            and match_labels(pod["metadata"].get("labels"), service["spec"]["selector"])
            for pod in objects.list(resources.PODS, namespace)
        ):
            self._next_try = time.monotonic() + 0.1
            return
        run.state = terminated(0, started_at=timestamp())

    def _start(self, run: ContainerRun) -> None:
        if not self._containers.start_if_due(run, self._volumes or {}):
            self._next_try = time.monotonic() + _RETRY_S

    # Ending

    def _terminate(self) -> None:
        """Delete the pod: TERM, KILL after the grace, then the object."""
        if self._kill_at is None:
            grace = float(self._pod["metadata"].get("deletionGracePeriodSeconds", 30))
            self._kill_at = time.monotonic() + grace
            self._containers.stop_restarting()
            self._containers.announce_stop()
            self._containers.terminate()
        self._kill_when_due()
        if self._containers.have_processes():
            return
        for run in self._containers.main:
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
            self._containers.kill()

    # Reporting

    def _report(self) -> None:
        metadata = self._pod["metadata"]

        def change(pod: Object) -> None:
            pod["status"] = clone(
                pod_status(
                    pod.get("status") or {},
                    self._containers.init,
                    self._containers.main,
                    address=LOCAL_ADDRESS,
                    failure=self._failure,
                )
            )

        self._context.objects.modify(
            resources.PODS, metadata["namespace"], metadata["name"], change, uid=self.uid
        )
