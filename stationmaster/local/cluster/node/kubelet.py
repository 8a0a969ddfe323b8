"""The kubelet of all local nodes: one worker for each pod that is bound to one of them.

Follows the store, starts and notifies pod workers, and finds the logs that the REST layer serves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from stationmaster.local.cluster.api import errors, resources
from stationmaster.local.cluster.api.conditions import has_ended
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.logs import ContainerLog
from stationmaster.local.cluster.node.containers import ContainerRun
from stationmaster.local.cluster.node.launch import NodeContext
from stationmaster.local.cluster.node.podworker import PodWorker

# Ends a hang: killed processes go, but a busy machine takes its time.
_KILL_PATIENCE_S = 600.0
# A person who ends local mode does not wait that long for a process that cannot be killed.
STOP_PATIENCE_S = 20.0


class Kubelet:
    """Runs the pods of the local nodes."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._workers: dict[str, PodWorker] = {}
        self._lost: set[str] = set()
        self._stopping = False
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._unsubscribe = self._context.objects.store.subscribe(
            self._on_change, resource=resources.PODS.key
        )

    def stop(self, grace_s: float, patience_s: float = STOP_PATIENCE_S) -> list[str]:
        """End every pod's processes: TERM, KILL after `grace_s`, and `patience_s` for their end.

        Returns:
            The processes that are still there, each by its id and its pod.
        """
        self._unsubscribe()
        with self._lock:
            self._stopping = True
        return self.end_all(grace_s, patience_s)

    def end_all(self, grace_s: float, patience_s: float = _KILL_PATIENCE_S) -> list[str]:
        """End the processes of all pods and wait for them; the objects are not touched.

        Returns:
            As stop.
        """
        with self._lock:
            workers = list(self._workers.values())
        for worker in workers:
            worker.shut_down(grace_s)
        deadline = time.monotonic() + grace_s + patience_s
        ended = [worker.join(max(0.0, deadline - time.monotonic())) for worker in workers]
        return [
            process
            for worker, has_ended in zip(workers, ended, strict=True)
            if not has_ended
            for process in worker.processes()
        ]

    def lose(self, node: str) -> None:
        """Lose a node's machine: its processes end, and nobody writes their end."""
        with self._lock:
            self._lost.add(node)
            workers = [each for each in self._workers.values() if each.node == node]
        for worker in workers:
            worker.removed()

    def process_ids(self, uid: str) -> list[int]:
        """Return the processes that the containers of a pod began with and that have not ended."""
        with self._lock:
            worker = self._workers.get(uid)
        return [] if worker is None else worker.process_ids()

    def _on_change(self, change: Change) -> None:
        """Called under the store's lock: hands over and returns."""
        pod = change.object
        uid = pod["metadata"]["uid"]
        with self._lock:
            worker = self._workers.get(uid)
            if change.type == "DELETED":
                if worker is not None:
                    worker.removed()
            elif worker is not None:
                worker.changed(pod)
            elif self._is_new_work(pod):
                self._workers[uid] = self._new_worker(pod)

    def _is_new_work(self, pod: Object) -> bool:
        node = pod["spec"].get("nodeName")
        is_ours = bool(node) and node not in self._lost and not self._stopping
        return is_ours and not has_ended(pod)

    def _new_worker(self, pod: Object) -> PodWorker:
        uid = pod["metadata"]["uid"]

        def ended() -> None:
            with self._lock:
                self._workers.pop(uid, None)

        worker = PodWorker(self._context, pod, ended)
        worker.start()
        return worker

    def find_log(self, pod: Object, container: str, previous: bool) -> ContainerLog | None:
        """Return the log of a container's current (or previous) run; None of a pod without a node.

        Raises:
            ApiError: 400 when there is no such container, or no run of it to read; 404 when this
                kubelet does not know the pod, as one does until its list of pods is synced.
        """
        metadata = pod["metadata"]
        spec = pod["spec"]
        named = [*spec.get("initContainers", []), *spec["containers"]]
        name = container or _default_container(pod)
        if name not in [candidate["name"] for candidate in named]:
            raise errors.bad_request(
                f"container {name} is not valid for pod {metadata['name']}"
                if container
                else f"a container name must be specified for pod {metadata['name']}, choose one "
                f"of: [{' '.join(candidate['name'] for candidate in spec['containers'])}]"
            )
        with self._lock:
            worker = self._workers.get(metadata["uid"])
        if not spec.get("nodeName"):
            return None
        if worker is None:
            raise errors.unknown_to_kubelet(metadata["name"])
        run = next(run for run in worker.runs() if run.name == name)
        log = run.previous_log if previous else run.log
        if log is None:
            raise _no_log(run, metadata["name"], previous=previous)
        return log


def _default_container(pod: Object) -> str:
    containers = pod["spec"]["containers"]
    annotations = pod["metadata"].get("annotations") or {}
    chosen = annotations.get("kubectl.kubernetes.io/default-container", "")
    return str(chosen or (containers[0]["name"] if len(containers) == 1 else ""))


def _no_log(run: ContainerRun, pod: str, *, previous: bool) -> ApiError:
    if previous:
        return errors.bad_request(
            f'previous terminated container "{run.name}" in pod "{pod}" not found'
        )
    reason = (run.state.get("waiting") or {}).get("reason")
    if reason:
        return errors.bad_request(
            f'container "{run.name}" in pod "{pod}" is waiting to start: {reason}'
        )
    return errors.bad_request(
        f'container "{run.name}" in pod "{pod}" is a cluster component that local mode emulates; '
        "it has no process and no log"
    )
