"""A pod worker on a node that is slow: what is due while it reports is done all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stationmaster.local.cluster.labels import JOB_NAME_LABEL
from stationmaster.local.cluster.node import podworker
from stationmaster.local.cluster.node.containers import PodContainers
from stationmaster.local.cluster.node.podworker import PodWorker

POD = {
    "metadata": {"name": "operator", "namespace": "kubeflow", "uid": "u-1"},
    "spec": {
        "nodeName": "node-1",
        "containers": [{"name": "operator", "image": "kubeflow/training-operator:v1"}],
    },
}


class SlowObjects:
    """Stores a pod's status, the first time not before the pod's start is due."""

    def __init__(self) -> None:
        self.running = threading.Event()
        self.due_at = 0.0

    def modify(
        self,
        _resource: object,
        _namespace: str,
        _name: str,
        change: Callable[[dict[str, Any]], None],
        *,
        uid: str,
    ) -> None:
        while time.monotonic() <= self.due_at:
            threading.Event().wait(0.01)
        pod: dict[str, Any] = {"metadata": {"uid": uid}}
        change(pod)
        if pod["status"]["phase"] == "Running":
            self.running.set()


def test_pod_that_is_due_while_its_status_is_written_starts_without_another_message(
    tmp_path: Path,
) -> None:
    objects = SlowObjects()
    context: Any = SimpleNamespace(
        objects=objects,
        recorder=SimpleNamespace(record=lambda *_, **__: None),
        gpus=SimpleNamespace(release=lambda uid: None),
        state_dir=tmp_path,
        faults=set(),
    )
    ended = threading.Event()
    worker = PodWorker(context, POD, ended.set)
    objects.due_at = worker._started_at + podworker._COMPONENT_START_S
    worker.start()

    started = objects.running.wait(timeout=600)
    worker.removed()

    assert started, "nobody looked at the pod again"
    assert ended.wait(timeout=600)


def test_image_that_is_not_there_is_said_as_a_kubelet_says_it(tmp_path: Path) -> None:
    said: list[str] = []
    recorder = SimpleNamespace(record=lambda *about, **_: said.append(about[3]))
    context: Any = SimpleNamespace(recorder=recorder, faults={"image-not-pulled"})
    spec = {"containers": [{"name": "pytorch", "image": "registry/trainer:1"}]}
    pod = {"metadata": {"name": "w-0", "labels": {JOB_NAME_LABEL: "job"}}, "spec": spec}
    containers = PodContainers(context, pod, tmp_path, lambda _: None)
    (run,) = containers.main

    for reason in ("ErrImagePull", "ImagePullBackOff", "ImagePullBackOff"):
        assert not containers.start_if_due(run, {})
        assert run.state["waiting"]["reason"] == reason

    assert "registry/trainer:1: not found" in run.state["waiting"]["message"]
    assert [message.split(" image ")[0] for message in said] == [
        "Failed to pull",
        "Back-off pulling",
    ]
