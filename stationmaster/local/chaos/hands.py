"""What people and accidents do to a running local mode, a method for each fault.

Each says in words what it did, or that there was nothing to do it to.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from botocore.exceptions import ClientError
from kubernetes import client, config

from lambdas import registry
from stationmaster.domain.block_text import block_text, plain
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID, NAMESPACE, TRAINING_NODE_GROUP
from stationmaster.domain.run.aggregate import Run
from stationmaster.local.chaos.drawing import Incident
from stationmaster.local.chaos.runtime import DisturbedRuntime, Effect
from stationmaster.local.mode import LocalMode
from stationmaster.rendering.metadata import LABEL_NODE_GROUP
from stationmaster.services import Services

T = TypeVar("T")
_RECORDER: Final = frozenset({registry.RECORDER.name})
_NOTIFIER: Final = frozenset({registry.NOTIFIER.name})
_STEPS: Final = frozenset(step.name for step in registry.STEPS) | _RECORDER
_DISTURBED: Final[dict[str, tuple[Effect, frozenset[str]]]] = {
    "notifier": ("unanswered", _NOTIFIER),
    "throttle": ("refused", _STEPS),
    "timeout": ("unanswered", _STEPS),
    "twice": ("twice", _RECORDER | _NOTIFIER),
    "disorder": ("late", _RECORDER),
}
_SERVICES: Final = ("dynamodb", "ec2", "eks", "events", "fsx", "states", "s3")
_NOBODY: Final = "there is none"
_TRIES, _LOOK_AGAIN_S = 10, 0.3


class Hands:
    """Injects faults, and takes back those that last for a time."""

    def __init__(
        self, mode: LocalMode, runtime: DisturbedRuntime, services: Services, *, full_disk: Path
    ) -> None:
        self._mode = mode
        self._runtime = runtime
        self._services = services
        self._full_disk = full_disk
        self._undo: list[tuple[float, Callable[[], object]]] = []
        self._core = client.CoreV1Api(
            config.new_client_from_config(str(mode.cluster.kubeconfig), persist_config=False)
        )

    def do(self, incident: Incident) -> str:
        """Let it happen; what happened, in words."""
        if incident.kind in _DISTURBED:
            return self._disturb(incident, *_DISTURBED[incident.kind])
        return str(getattr(self, f"_{incident.kind}")(incident))

    def take_back(self, *, everything: bool = False) -> None:
        """Take back what has lasted for its time, or everything."""
        now = time.monotonic() if not everything else float("inf")
        due = [undo for at, undo in self._undo if at <= now]
        self._undo = [each for each in self._undo if each[0] > now]
        for undo in due:
            undo()
        if everything:
            self._runtime.rest()
            self._mode.slack.close_for(0)
            assert self._mode.aws is not None
            self._mode.aws.clear_injected()

    def type(self, words: str) -> str:
        """Type a command as a person does; the first line of the answer."""
        answer = self._mode.slack.type_command(f"/train {words}")
        said = plain(block_text(answer.blocks) or answer.text) or f"no answer: {answer.error}"
        return f"/train {words}: {said.splitlines()[0]}"

    def training_pods(self) -> Counter[str]:
        """Count the pods of each run that train and are not on their way out."""
        pods = [pod.metadata for pod in self._pods("training")]
        return Counter(pod.labels[LABEL_RUN_ID] for pod in pods if pod.deletion_timestamp is None)

    def _start(self, incident: Incident) -> str:
        """Type the command twice at once, as a person does who sees no answer."""
        second = threading.Thread(target=self.type, args=(incident.words,))
        second.start()
        said = self.type(incident.words)
        second.join()
        return said

    def _stop(self, incident: Incident) -> str:
        run = incident.choose(self._runs(is_over=False))
        if run is None:
            return _NOBODY
        self.type(f"stop {run.run_id} now")
        return self.type(f"stop {run.run_id} now")

    def _resume(self, incident: Incident) -> str:
        run = incident.choose(self._runs(is_over=True))
        return _NOBODY if run is None else self.type(f"resume {run.run_id}")

    def _runs(self, *, is_over: bool) -> list[Run]:
        found = again(lambda: list(self._services.runs.list_newest()))
        over = [run for run in found if run.phase.is_terminal is is_over]
        return sorted(over, key=lambda run: run.run_id)

    def _pod(self, incident: Incident) -> str:
        pod = incident.choose(self._pods("training"))
        if pod is None:
            return _NOBODY
        with suppress(client.ApiException):
            self._core.delete_namespaced_pod(pod.metadata.name, NAMESPACE)
        return f"pod {pod.metadata.name} is deleted"

    def _worker(self, incident: Incident) -> str:
        pod = incident.choose(self._pods("training"))
        workers = [] if pod is None else _trainers(pod.metadata.labels[LABEL_RUN_ID])
        return _signal(incident.choose(workers), signal.SIGKILL, "trainer")

    def _agent(self, incident: Incident) -> str:
        return _signal(self._main_process(incident, "training"), signal.SIGKILL, "torchrun")

    def _relay(self, incident: Incident) -> str:
        return _signal(self._main_process(incident, "relay"), signal.SIGKILL, "relay")

    def _pause(self, incident: Incident) -> str:
        relay, seconds = self._main_process(incident, "relay"), incident.between(2, 25)
        self._for(seconds, lambda: _signal(relay, signal.SIGCONT, "relay"))
        return f"{_signal(relay, signal.SIGSTOP, 'relay')} for {seconds:.0f} s"

    def _main_process(self, incident: Incident, role: str) -> int | None:
        ids = [self._mode.cluster.process_ids(pod.metadata.uid) for pod in self._pods(role)]
        return incident.choose([each for of_pod in ids for each in of_pod])

    def _node(self, incident: Incident) -> str:
        nodes = self._core.list_node(label_selector=f"{LABEL_NODE_GROUP}={TRAINING_NODE_GROUP}")
        name = incident.choose(sorted(node.metadata.name for node in nodes.items))
        if name is None:
            return _NOBODY
        self._mode.cluster.replace_node(name)
        return f"{name} is lost, and another one joins"

    def _disturb(self, incident: Incident, effect: Effect, functions: frozenset[str]) -> str:
        times = round(incident.between(1, 2))
        self._runtime.disturb(effect, functions, times=times)
        return f"the next {times} invocations are {effect}"

    def _aws(self, incident: Incident) -> str:
        service, times = incident.choose(_SERVICES), round(incident.between(1, 4))
        assert self._mode.aws is not None
        self._mode.aws.inject(str(service), "*", "ThrottlingException", times=times)
        return f"{service} throttles the next {times} calls"

    def _slack(self, incident: Incident) -> str:
        seconds = incident.between(2, 20)
        self._mode.slack.close_for(seconds)
        return f"Slack answers 429 for {seconds:.0f} s"

    def _clock(self, incident: Incident) -> str:
        offset_s, seconds = incident.between(-5, 5), 10
        set_clock(offset_s)
        self._for(seconds, set_clock)
        return f"the functions' clocks jump by {offset_s:+.1f} s for {seconds} s"

    def _disk(self, incident: Incident) -> str:
        seconds = incident.between(1, 6)
        self._full_disk.touch()
        self._for(seconds, lambda: self._full_disk.unlink(missing_ok=True))
        return f"file systems are full for {seconds:.0f} s"

    def _for(self, seconds: float, undo: Callable[[], object]) -> None:
        self._undo.append((time.monotonic() + seconds, undo))

    def _pods(self, role: str) -> list[Any]:
        """List the running pods of a role, by name."""
        found = self._core.list_namespaced_pod(NAMESPACE, label_selector=f"{LABEL_ROLE}={role}")
        running = [pod for pod in found.items if pod.status.phase == "Running"]
        return sorted(running, key=lambda pod: pod.metadata.name)


def again(look: Callable[[], T]) -> T:
    """Look at the account, which may be throttled at the moment."""
    for _ in range(_TRIES):
        with suppress(StationmasterError, ClientError):
            return look()
        time.sleep(_LOOK_AGAIN_S)
    return look()


def set_clock(offset_s: float = 0.0) -> None:
    """Let the functions' clocks differ from that of this machine."""
    offset = timedelta(seconds=offset_s)
    Services.clock = staticmethod(lambda: datetime.now(UTC) + offset)


def _trainers(run_id: str) -> list[int]:
    """List the training processes of a run, without what has started them."""
    command = ["ps", "-axwwo", "pid=,command="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=1) for line in listed.splitlines()]
    own = [(pid, said) for pid, said in lines if run_id in said and "-m training" in said]
    return sorted(int(pid) for pid, said in own if "torchrun" not in said)


def _signal(process: int | None, number: signal.Signals, what: str) -> str:
    if process is None:
        return _NOBODY
    with suppress(ProcessLookupError):
        os.kill(process, number)
    return f"{number.name} to {what} {process}"
