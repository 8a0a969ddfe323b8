"""Kubernetes objects of a run, and what a watcher hands over. Shared by tests of the relay."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

from stationmaster.domain.progress_lines import ProgressLine

SINCE = "2026-01-02T03:00:00Z"
LIMIT_S = 600  # ends a hang; reached only on failure


def job(*conditions: str | tuple[str, str, str], name: str = "run-1", uid: str = "job-uid") -> Any:
    listed = [(each, "True", SINCE) if isinstance(each, str) else each for each in conditions]
    stamped = [
        {
            "type": kind,
            "status": status,
            "reason": f"PyTorchJob{kind}",
            "message": f"job is {kind}",
            "lastTransitionTime": at,
        }
        for kind, status, at in listed
    ]
    return {"metadata": {"name": name, "uid": uid}, "status": {"conditions": stamped}}


def running() -> Any:
    return {"running": {"startedAt": SINCE}}


def terminated(code: int, *, reason: str = "Error") -> Any:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": SINCE}}


def waiting(reason: str, message: str = "") -> Any:
    return {"waiting": {"reason": reason, "message": message}}


def pod(
    *,
    phase: str = "Running",
    state: Any = None,
    last: Any = None,
    restarts: int = 0,
    uid: str = "pod-uid",
    name: str = "run-1-worker-0",
    node: str = "node-a",
    **status: Any,
) -> Any:
    """A worker; its container runs where its phase says so and nothing else is given."""
    usual = running() if phase == "Running" else {}
    container = {
        "name": "pytorch",
        "restartCount": restarts,
        "state": usual if state is None else state,
        "lastState": last or {},
    }
    return {
        "metadata": {"name": name, "uid": uid},
        "spec": {"nodeName": node, "containers": [{"name": "pytorch"}]},
        "status": {"phase": phase, "containerStatuses": [container], **status},
    }


def warning(
    *,
    name: str = "run-1-worker-0",
    kind: str = "Pod",
    type_: str = "Warning",
    count: int = 1,
    uid: str = "warning-uid",
) -> Any:
    return {
        "metadata": {"uid": uid},
        "type": type_,
        "involvedObject": {"kind": kind, "name": name},
        "reason": "BackOff",
        "message": "back-off",
        "count": count,
        "lastTimestamp": SINCE,
    }


def node(
    name: str = "node-a", *, ready: str = "True", capacity: str = "ON_DEMAND", drained: bool = False
) -> Any:
    labels = {"eks.amazonaws.com/capacityType": capacity}
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": SINCE}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "spec": {"unschedulable": True} if drained else {},
        "status": {"conditions": [condition | {"reason": "NodeStatusUnknown"}]},
    }


def log_line(step: int) -> bytes:
    """A line of a log with its stamp: the trainer took a step."""
    at = datetime(2026, 1, 2, 3, 4, step, tzinfo=UTC)
    reported = ProgressLine(seq=step, step=step, total_steps=9, loss_nats=1.0, at=at)
    return f"2026-01-02T03:04:{step:02}.500000000Z {reported.text()}\n".encode()


class Reported:
    """What watcher and followers hand over, in order; of logs the names only."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.urgent: set[str] = set()
        self.forgotten: list[str] = []
        self.kept: set[str] = set()
        self._changed = threading.Condition()

    def put(self, events: list[Any], *, urgent: bool = False, place: object = None) -> bool:
        with self._changed:
            self.events += events
            self.urgent |= {event.event_id for event in events if urgent}
            self._changed.notify_all()
        return True

    def nothing(self, *_: object) -> None:
        """Forget a line, or the end of a log."""

    keep_line = end_of_log = pod_ended = nothing

    def keep(self, name: str, _line: object) -> None:
        self.kept.add(name)

    def forget_pod(self, name: str) -> None:
        self.forgotten.append(name)

    def wait_for(self, type_: str, *, times: int = 1) -> list[Any]:
        """The events of that type, once there are as many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(type_)) >= times, LIMIT_S), self.types
            return self.of(type_)

    def wait_for_steps(self, *steps: int) -> None:
        self.wait_for("progress.reported", times=len(steps))
        assert [event.step for event in self.of("progress.reported")] == list(steps)

    def of(self, type_: str) -> list[Any]:
        return [event for event in self.events if event.type == type_]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]
