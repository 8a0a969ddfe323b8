"""batch/v1 Jobs: runs pods to completion, counts them, gives up at the back-off limit.

Started by `LocalCluster`. Indexed completion, suspension and deadline are supported.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.conditions import (
    condition_of,
    has_ended,
    is_going,
    phase,
    set_condition,
)
from stationmaster.local.cluster.api.metadata import clone, timestamp
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.back_off import BackOff
from stationmaster.local.cluster.controllers.controller import Key
from stationmaster.local.cluster.controllers.owners import (
    OwnerController,
    controller_of,
    owned,
    pod_from,
)
from stationmaster.local.cluster.events import EventRecorder

_INDEX = "batch.kubernetes.io/job-completion-index"


def job_end(job: Object) -> str:
    """Return Complete or Failed, as the Job has ended; "" of one that has not."""
    kinds = ("Complete", "Failed")
    return next((kind for kind in kinds if condition_of(job.get("status"), kind)), "")


def _seconds_since(moment: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()


def _ended_at(pod: Object) -> str:
    statuses = pod["status"].get("containerStatuses") or []
    ends = [((each.get("state") or {}).get("terminated") or {}) for each in statuses]
    return max((end.get("finishedAt", "") for end in ends), default="")


def _forbidden_end(spec: Object, failed: list[Object]) -> tuple[str, str] | None:
    """Return the first pod that ended with an exit code that none may follow, or None.

    Of podFailurePolicy the action FailJob on exit codes is supported.
    """
    for index, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or []):
        wanted = rule.get("onExitCodes") or {}
        if rule["action"] != "FailJob" or not wanted:
            continue
        for pod in failed:
            metadata = pod["metadata"]
            for status in pod["status"].get("containerStatuses") or []:
                ended = (status.get("state") or {}).get("terminated") or {}
                code, name = ended.get("exitCode", 0), status["name"]
                if not code or wanted.get("containerName", name) != name:
                    continue
                if (code in wanted["values"]) == (wanted["operator"] == "In"):
                    return (
                        "PodFailurePolicy",
                        f"Container {name} for pod {metadata['namespace']}/{metadata['name']} "
                        f"failed with exit code {code} matching FailJob rule at index {index}",
                    )
    return None


class JobController(OwnerController):
    """Runs Jobs."""

    name = "jobs"
    resource_key, kind = resources.JOBS.key, resources.JOBS.kind

    def __init__(self, objects: Objects, recorder: EventRecorder, back_off: BackOff) -> None:
        super().__init__(objects, recorder)
        self._back_off = back_off
        # By the Job's uid: its failures in a row, and when the last was seen.
        self._failures: dict[str, tuple[int, float]] = {}
        self._own: set[str] = set()  # uids of the pods that this controller has deleted
        # By the Job's uid: pods that others have taken away before their end, a lost node included.
        self._gone: dict[str, set[str]] = {}

    def keys_of(self, change: Change) -> Iterable[Key]:
        if change.resource == resources.PODS.key and change.type == "DELETED":
            owner, uid = controller_of(change.object), change.object["metadata"]["uid"]
            if owner is not None and not has_ended(change.object) and uid not in self._own:
                self._gone.setdefault(owner["uid"], set()).add(uid)
        return super().keys_of(change)

    def bring_in_order(self, obj: Object) -> float | None:
        if job_end(obj):
            return None
        spec = obj["spec"]
        pods = owned(self.objects, resources.PODS, obj)
        status = clone(obj.get("status") or {})
        if spec.get("suspend"):
            for pod in pods:
                self.remove_pod(obj, pod)
            self.set_status(obj, {**status, "active": 0})
            return None
        status.setdefault("startTime", timestamp())
        succeeded = [pod for pod in pods if phase(pod) == "Succeeded"]
        failed = [pod for pod in pods if phase(pod) == "Failed"]
        active = [pod for pod in pods if pod not in succeeded and pod not in failed]
        deadline_s = spec.get("activeDeadlineSeconds")
        left_s = None
        if deadline_s is not None:
            left_s = deadline_s - _seconds_since(status["startTime"])
        failure = _forbidden_end(spec, failed)
        num_failed = len(failed) + len(self._gone.get(obj["metadata"]["uid"], ()))
        if failure is None and num_failed + len(self._lost(active)) > spec["backoffLimit"]:
            failure = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        if failure is None and left_s is not None and left_s <= 0:
            failure = ("DeadlineExceeded", "Job was active longer than specified deadline")
        if failure is not None:
            self._finish(obj, status, active, succeeded, failed, failure)
            return None
        if len(succeeded) >= spec["completions"]:
            self._finish(obj, status, active, succeeded, failed, None)
            return None
        going = [pod for pod in active if is_going(pod)]
        pause_s = self._pause_s(obj, succeeded, failed)
        wanted = min(spec["parallelism"], spec["completions"] - len(succeeded))
        for _ in range(0 if pause_s > 0 else wanted - (len(active) - len(going))):
            active.append(self._create(obj, [*active, *succeeded]))
        ready = sum(1 for pod in active if infrastructure.is_ready(pod))
        # A pod that has failed counts also when it is gone.
        counts = {"active": len(active), "ready": ready, "succeeded": len(succeeded)}
        counts["failed"] = max(num_failed, status.get("failed", 0))
        self.set_status(obj, {**status, **counts})
        due = [seconds for seconds in (left_s, pause_s or None) if seconds is not None]
        return min(due, default=None)

    def _lost(self, active: list[Object]) -> list[Object]:
        """Return pods that others have deleted before their end, which count as failed and end now.

        Source: kubernetes, pkg/controller/job/job_controller.go, isPodFailed.
        """
        return [pod for pod in active if is_going(pod) and pod["metadata"]["uid"] not in self._own]

    def remove_pod(self, owner: Object, pod: Object) -> None:
        if not is_going(pod):
            self._own.add(pod["metadata"]["uid"])
        super().remove_pod(owner, pod)

    def _pause_s(self, obj: Object, succeeded: list[Object], failed: list[Object]) -> float:
        """Real seconds until a pod may follow those that failed since the last one that succeeded.

        Source: kubernetes, pkg/controller/job/backoff_utils.go.
        """
        done = max((_ended_at(pod) for pod in succeeded), default="")
        in_a_row = sum(1 for pod in failed if _ended_at(pod) >= done)
        if not in_a_row:
            return 0.0
        uid, now = obj["metadata"]["uid"], time.monotonic()
        known, since = self._failures.get(uid, (0, now))
        if in_a_row != known:
            since = now
        self._failures[uid] = (in_a_row, since)
        wait_s = self._back_off.real_s(self._back_off.delay_s(in_a_row))
        return max(0.0, since + wait_s - now)

    def _create(self, obj: Object, placed: list[Object]) -> Object:
        pod = pod_from(obj["spec"]["template"], obj, labels={})
        name = obj["metadata"]["name"]
        pod["metadata"]["generateName"] = f"{name}-"
        if obj["spec"]["completionMode"] == "Indexed":
            taken = {p["metadata"]["annotations"].get(_INDEX) for p in placed}
            index = next(i for i in range(obj["spec"]["completions"]) if str(i) not in taken)
            pod["metadata"].setdefault("annotations", {})[_INDEX] = str(index)
            pod["metadata"]["generateName"] = f"{name}-{index}-"
            pod["spec"]["hostname"] = f"{name}-{index}"
            for container in pod["spec"].get("containers") or []:
                container.setdefault("env", []).append(
                    {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
                )
        return self.create_pod(obj, pod)

    def _finish(
        self,
        obj: Object,
        status: Object,
        active: list[Object],
        succeeded: list[Object],
        failed: list[Object],
        failure: tuple[str, str] | None,
    ) -> None:
        self._failures.pop(obj["metadata"]["uid"], None)
        for pod in active:
            self.remove_pod(obj, pod)
        if failure is not None:
            set_condition(status, "Failed", *failure)
            self.say(obj, "Warning", *failure)
        else:
            status["completionTime"] = timestamp()
            message = "Reached expected number of succeeded pods"
            set_condition(status, "Complete", "CompletionsReached", message)
            self.say(obj, "Normal", "Completed", "Job completed")
        counts = {"succeeded": len(succeeded), "failed": len(failed), "active": 0, "ready": 0}
        self.set_status(obj, {**status, **counts})
