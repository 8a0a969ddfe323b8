"""Kubernetes objects as JSON, and what those of a training pod say. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, get_args

from stationmaster.domain.ids import RunId
from stationmaster.domain.names import LABEL_ATTEMPT
from stationmaster.domain.outside import plausible_time
from stationmaster.domain.run.events import PodChanged
from stationmaster.relay.lines import PodFacts
from stationmaster.rendering.job_backends import TRAINING_CONTAINERS, JobBackend

JsonObject = dict[str, Any]

# The device plugin's name for an EFA interface.
_EFA: Final = "vpc.amazonaws.com/efa"
_PHASES: Final = frozenset(get_args(PodChanged.model_fields["phase"].annotation))
# Options that give trainers the number of steps, for formats that do not print it.
_STEP_OPTIONS = re.compile(
    r"(?:^|\s)--(?:max[_-]steps|train[_-]iters|training\.steps)(?:[= ]|$)(\d{1,15})?"
)
_RESTART_OPTION = re.compile(r"(?:^|\s)--max[_-]restarts[= ](\d{1,6})")


def name_of(thing: JsonObject) -> str:
    return str((thing.get("metadata") or {}).get("name", ""))


def uid_of(thing: JsonObject) -> str:
    return str((thing.get("metadata") or {}).get("uid", ""))


def attempt_of(pod: JsonObject) -> int:
    """Return the number of the attempt that a training pod is of."""
    label = ((pod.get("metadata") or {}).get("labels") or {}).get(LABEL_ATTEMPT, "")
    return int(label) if re.fullmatch(r"[1-9][0-9]{0,3}", str(label)) else 1


def parse_time(value: object) -> datetime | None:
    """Read a time of the API; None where it is none, e.g. the zero time."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return plausible_time(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def training_container(pod: JsonObject) -> str:
    """Name the container that trains; "" in a pod that has none."""
    containers = (pod.get("spec") or {}).get("containers") or []
    names = (str(each.get("name")) for each in containers)
    return next((name for name in names if name in TRAINING_CONTAINERS), "")


def pod_facts(run_id: RunId, job: str, backend: JobBackend, pod: JsonObject) -> PodFacts:
    """Read what the pod's specification says that its log lines leave out."""
    container = training_container(pod)
    containers = (pod.get("spec") or {}).get("containers") or []
    training: JsonObject = next((c for c in containers if c.get("name") == container), {})
    command = " ".join(
        str(part) for part in [*(training.get("command") or []), *(training.get("args") or [])]
    )
    variables = {entry.get("name"): entry.get("value") for entry in training.get("env") or []}
    steps = _STEP_OPTIONS.search(command)
    option = _RESTART_OPTION.search(command)
    limits = (training.get("resources") or {}).get("limits") or {}
    interfaces = str(limits.get(_EFA) or 0)
    is_alone = variables.get("PET_NNODES") in ("1", "1:1")
    restarts = option[1] if option else variables.get("PET_MAX_RESTARTS")
    return PodFacts(
        run_id=run_id,
        job=job,
        name=backend.replica_of(pod),
        container=container,
        uid=uid_of(pod),
        attempt=attempt_of(pod),
        max_restarts=int(restarts) if restarts and str(restarts).isdecimal() else None,
        total_steps=int(steps[1]) if steps and steps[1] else None,
        num_efa=int(interfaces) if interfaces.isdecimal() and not is_alone else 0,
    )


@dataclass(frozen=True)
class ContainerState:
    """The state of a pod's training container."""

    restarts: int = 0
    running: bool = False
    terminated: bool = False  # and not running again yet
    exit_code: int | None = None  # of the present run, once it has ended
    previous_exit_code: int | None = None  # of the run before it, if the status still has it

    @property
    def has_log(self) -> bool:
        return self.running or self.terminated or self.restarts > 0


def container_state(pod: JsonObject) -> ContainerState:
    """Read the training container's state from the pod's status."""
    status = _training_status(pod)
    state, last = status.get("state") or {}, status.get("lastState") or {}
    before = last.get("terminated") or {}
    ended = state.get("terminated") or {}
    if "waiting" in state:
        ended, before = before, {}  # the count goes up when it starts again
    return ContainerState(
        restarts=int(status.get("restartCount") or 0),
        running="running" in state,
        terminated="terminated" in state or ("waiting" in state and "terminated" in last),
        exit_code=_exit_code(ended),
        previous_exit_code=_exit_code(before),
    )


def is_finished(pod: JsonObject) -> bool:
    """Say whether the pod will run nothing more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _training_status(pod: JsonObject) -> JsonObject:
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        if status.get("name") in TRAINING_CONTAINERS:
            return dict(status)
    return {}


@dataclass(frozen=True)
class PodView:
    """What is reported of a pod; another event follows only when this changes."""

    phase: str
    node: str = ""
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    restarts: int = 0


def pod_view(pod: JsonObject) -> tuple[PodView, datetime | None]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    phase = status.get("phase")
    training = _training_status(pod)
    reason, message, exit_code, at = _container_reason(training)
    if not reason:
        for init in status.get("initContainerStatuses") or []:
            found = _container_reason(init)
            if found[0] and found[2] != 0:  # one that is done is no reason
                reason, message, _, at = found
                break
    if status.get("reason"):  # Evicted, NodeLost, DeadlineExceeded: why its containers ended
        reason, message = str(status["reason"]), str(status.get("message", ""))
    conditions = status.get("conditions") or []
    for condition in conditions:
        unscheduled = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if not reason and unscheduled:
            reason, message = str(condition.get("reason", "")), str(condition.get("message", ""))
    changes = [parse_time(condition.get("lastTransitionTime")) for condition in conditions]
    view = PodView(
        phase=str(phase) if phase in _PHASES else "Unknown",
        node=str(spec.get("nodeName") or ""),
        reason=reason,
        message=message,
        exit_code=exit_code,
        restarts=int(training.get("restartCount") or 0),
    )
    return view, at or max((change for change in changes if change), default=None)


def _container_reason(status: JsonObject) -> tuple[str, str, int | None, datetime | None]:
    """Return reason, message, exit code and time of a container's present state."""
    state = status.get("state") or {}
    if terminated := state.get("terminated"):
        return _termination(terminated)
    if waiting := state.get("waiting"):
        return str(waiting.get("reason", "")), str(waiting.get("message", "")), None, None
    return "", "", None, parse_time((state.get("running") or {}).get("startedAt"))


def _termination(terminated: JsonObject) -> tuple[str, str, int | None, datetime | None]:
    return (
        str(terminated.get("reason", "")),
        str(terminated.get("message", "")),
        _exit_code(terminated),
        parse_time(terminated.get("finishedAt")),
    )


def _exit_code(terminated: JsonObject) -> int | None:
    code = terminated.get("exitCode")
    return code if isinstance(code, int) else None


def missed_exit(pod: JsonObject, view: PodView) -> tuple[PodView, datetime | None] | None:
    """Say how the container ended before it was started again, as its status would have shown it.

    The reported fields are those of the status between end and restart, so that the id is the same
    whether that status was seen or not.
    """
    status = _training_status(pod)
    terminated = (status.get("lastState") or {}).get("terminated")
    state = status.get("state") or {}
    if not terminated:
        return None
    # While it waits to be restarted the count is still that of the run that ended.
    restarts = view.restarts - (0 if "waiting" in state else 1)
    reason, message, exit_code, at = _termination(terminated)
    ended = PodView(
        phase="Running",
        node=view.node,
        reason=reason,
        message=message,
        exit_code=exit_code,
        restarts=max(0, restarts),
    )
    return ended, at
