"""A local mode that is watched: what its runs come to, and waits for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moto.stepfunctions.parser.api import ExecutionStatus
from moto.stepfunctions.parser.models import stepfunctions_parser_backends

from stationmaster import commands
from stationmaster.aws.workflows import pass_name
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import (
    ClusterPhase,
)
from stationmaster.domain.names import job_name
from stationmaster.domain.run.aggregate import Run, Wait
from stationmaster.local.mode import LocalMode
from stationmaster.services import Services
from stationmaster.steps.parts.leftovers import find_left
from tests.chaos.outcomes import Execution, Outcome
from tests.chaos.runtime import InterferingRuntime

# Of a run or of a cluster: the cluster of a run's own has the run's id.
AnId = Any
# Ends a hang; a machine that does fifty things at once must not reach it.
DEADLINE_S = 600.0
# Where no execution ran for so long, none will: what is on its way between two takes seconds.
_STILL_S = 120.0
# A look costs as much as a step of the run does, so those at a long wait come further apart.
_FIRST_LOOK_S = 0.02
_LAST_LOOK_S = 0.25
_LOOKS_GROW = 1.3
_MACHINES = ("train", "cluster", "teardown")


@dataclass
class Watched:
    """The running local mode, the rules of its runtime, and the plans of its runs."""

    mode: LocalMode
    runtime: InterferingRuntime
    plans: Path
    deadline_s: float = DEADLINE_S
    """For one wait."""
    still_s: float = _STILL_S
    """For one wait while no execution runs."""
    _of_thread: threading.local = field(default_factory=threading.local)

    @property
    def services(self) -> Services:
        """Services of a person or a test: threads do not share them."""
        assert self.mode.settings is not None
        if not hasattr(self._of_thread, "services"):
            self._of_thread.services = Services.create(self.mode.settings)
        found: Services = self._of_thread.services
        return found

    @property
    def aws(self) -> Any:
        """The account."""
        assert self.mode.aws is not None
        return self.mode.aws

    def until_ready(self, cluster_id: AnId) -> None:
        """Wait until a cluster is ready."""
        clusters = self.services.cluster_states
        self.until(
            lambda: clusters.load(cluster_id).phase is ClusterPhase.READY, f"{cluster_id} is ready"
        )

    def until_gone(self, cluster_id: AnId) -> Cluster:
        """Wait for the end of its teardown; the cluster as it was left."""
        clusters = self.services.cluster_states
        self.until(
            lambda: clusters.load(cluster_id).teardown is TeardownStatus.COMPLETED,
            f"{cluster_id} is torn down",
        )
        return clusters.load(cluster_id)

    def until_left(self, run_id: AnId) -> None:
        """Wait until the run has ended, its workflow too; its cluster may stay."""

        def left() -> bool:
            train = [each for kind, each in self._executions(run_id) if kind == "train"]
            return bool(train) and train[0].exec_status != ExecutionStatus.RUNNING

        self.until(left, f"{run_id} ends")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Poll until the condition holds; what it returned.

        Raises:
            TimeoutError: it did not within the deadline, or no execution runs any more that could
                bring it about; says in which states executions hang.
        """
        begun_at = ran_at = time.monotonic()
        look_s = _FIRST_LOOK_S
        while not (seen := condition()):
            now = time.monotonic()
            ran_at = now if self._any_runs() else ran_at
            if now - ran_at > self.still_s:
                raise TimeoutError(f"never: {what}; no execution has run for {self.still_s:g} s")
            if now - begun_at > self.deadline_s:
                hangs = ", ".join(self._states_now()) or "no execution runs"
                raise TimeoutError(f"not within {self.deadline_s:g} s: {what}; {hangs}")
            time.sleep(look_s)
            look_s = min(look_s * _LOOKS_GROW, _LAST_LOOK_S)
        return seen

    def until_awaiting(self, run_id: AnId) -> None:
        """Wait until the workflow waits for its job and training has said something."""
        services = self.services
        self.until(
            lambda: services.runs.load_task_token(run_id, Wait.JOB), f"{run_id} awaits its job"
        )
        self.until(lambda: services.runs.load(run_id).progress, f"{run_id} reports progress")

    def until_rested(self, run_id: AnId, *, torn_down: bool = False) -> Run:
        """Wait until the run has ended, its teardown too, and no execution of it runs."""
        services = self.services
        wanted = {TeardownStatus.COMPLETED} | (set() if torn_down else {TeardownStatus.FAILED})

        def rested() -> Run | None:
            if self._runs(run_id):
                return None
            view = commands.view_run(services, services.runs.load(run_id))
            # Also where the cluster was kept, and so is no concern of the run.
            teardown = view.cluster.teardown if view.cluster is not None else view.teardown
            return view.run if view.run.phase.is_terminal and teardown in wanted else None

        try:
            run: Run = self.until(rested, f"{run_id} ends and is torn down")
        except TimeoutError as exc:
            raise TimeoutError(f"{exc}; {self._seen(run_id)}") from exc
        return run

    def until_unsaved(self, run_id: AnId) -> None:
        """Wait until saving has given up for now, and the teardown has left what it needs."""
        runs, workflows = self.services.runs, self.services.workflows
        self.until(lambda: runs.load(run_id).unsaved_reason, f"saving {run_id} gives up for now")
        self.until(lambda: workflows.train_status(run_id) == "FAILED", f"{run_id} rests")
        self.until(
            lambda: workflows.teardown_status(run_id, attempt=1) == "FAILED",
            f"the teardown of {run_id} gives up for now",
        )

    def until_out(self, run_id: AnId) -> Run:
        """Wait until the run has ended and left the cluster that stays; the run."""
        runs, clusters = self.services.runs, self.services.cluster_states

        def out() -> Run | None:
            run = runs.load(run_id)
            if not run.phase.is_terminal or self._runs(run_id):
                return None
            cluster = clusters.find(run.cluster_id) if run.cluster_id is not None else None
            held = cluster is not None and run_id in cluster.waiting_runs
            return None if held else run

        run: Run = self.until(out, f"{run_id} leaves its cluster")
        return run

    def is_still(self, run_id: AnId) -> bool:
        """Whether nothing of the run is under way any more, however it ended."""
        if self._runs(run_id):
            return False
        if not self._is_told(run_id) or not self.aws.settle(timeout_s=1):
            return False
        # What was on its way may have started something.
        return not self._runs(run_id)

    def waits_in(self, run_id: AnId) -> str:
        """The state of the run's workflow, where nothing else of it is under way any more.

        Empty where something is: it may yet end the wait.
        """
        running = [
            (machine, each)
            for machine, each in self._executions(run_id)
            if each.exec_status == ExecutionStatus.RUNNING
        ]
        if [machine for machine, _ in running] != ["train"]:
            return ""
        state = _state_of(running[0][1])
        if not self._is_told(run_id) or not self.aws.settle(timeout_s=1):
            return ""
        return state if state == _state_of(running[0][1]) else ""

    def _is_told(self, run_id: AnId) -> bool:
        """Whether the recorder has dealt with every bad end of the run's executions."""
        ended = {ExecutionStatus.SUCCEEDED, ExecutionStatus.RUNNING}
        dead = {
            each.exec_arn for _, each in self._executions(run_id) if each.exec_status not in ended
        }
        return dead <= self.runtime.told_dead

    def until_still(self, run_id: AnId) -> None:
        """Wait until nothing of the run is under way any more, however it ended."""
        self.until(lambda: self.is_still(run_id), f"nothing of {run_id} runs")

    def _seen(self, run_id: AnId) -> str:
        """Where a run hangs, for the person who reads the failure."""
        services = self.services
        run = services.runs.load(run_id)
        job = services.kubernetes(run_id).job(job_name(run_id))
        executions = [(each.name, each.exec_status) for _, each in self._executions(run_id)]
        return (
            f"run {run.phase}, cluster {services.cluster_states.find(run_id)}, "
            f"recorded job {run.job_condition!r}, "
            f"pods {list(run.pods.values())}, job in the cluster {job}, executions {executions}"
        )

    def outcome(self, run_id: AnId) -> Outcome:
        """Everything that is known of the run."""
        services = self.services
        events = [*services.runs.events(run_id), *services.cluster_states.events(run_id)]
        return Outcome(
            run=services.runs.load(run_id),
            cluster=services.cluster_states.find(run_id),
            events=sorted(events, key=lambda event: event.at),
            left=[str(left) for left in find_left(services, run_id)],
            executions=[
                Execution(
                    machine=machine,
                    name=each.name,
                    status=str(each.exec_status.value),
                    error=each.error or "",
                    cause=each.cause or "",
                    history=list(each.to_history_output()["events"]),
                )
                for machine, each in self._executions(run_id)
            ],
        )

    def _arn(self, machine: str, name: str) -> str:
        arn: str = self.aws.state_machine_arn(machine)
        return f"{arn.replace(':stateMachine:', ':execution:')}:{name}"

    def _runs(self, run_id: AnId) -> bool:
        return any(
            each.exec_status == ExecutionStatus.RUNNING for _, each in self._executions(run_id)
        )

    def _executions(self, run_id: AnId) -> list[tuple[str, Any]]:
        """The run's executions by machine, from the interpreter itself: tens of thousands of
        history events as JSON, and a poll as requests, would cost more than the run."""
        names = {
            "train": [run_id, *(f"{run_id}-{number}" for number in range(2, 5))],
            "cluster": [pass_name(run_id, number) for number in (1, 2, 3)],
            "teardown": [f"{run_id}-teardown-{number}" for number in range(1, 10)],
        }
        found = self._executions_by_name()
        return [
            (machine, found[machine][name])
            for machine, wanted in names.items()
            for name in wanted
            if name in found.get(machine, {})
        ]

    def _executions_by_name(self) -> dict[str, dict[str, Any]]:
        """All that the interpreter has, by machine and name."""
        backend = stepfunctions_parser_backends[self.aws.account_id][self.aws.region]
        return {
            machine: {each.name: each for each in found.executions}
            for machine in _MACHINES
            for found in backend.state_machines
            if found.arn == self.aws.state_machine_arn(machine)
        }

    def _any_runs(self) -> bool:
        """Whether any execution runs, of whatever run."""
        return any(
            each.exec_status == ExecutionStatus.RUNNING
            for executions in self._executions_by_name().values()
            for each in executions.values()
        )

    def _states_now(self) -> list[str]:
        """The state in which each execution is that runs."""
        return [
            f"{machine} {name} is in {_state_of(each) or 'no state'}"
            for machine, executions in self._executions_by_name().items()
            for name, each in executions.items()
            if each.exec_status == ExecutionStatus.RUNNING
        ]


def _state_of(execution: Any) -> str:
    """The state that an execution has entered last; none before the first."""
    events = execution.to_history_output()["events"]
    entered = (event.get("stateEnteredEventDetails") for event in reversed(events))
    return next((str(details["name"]) for details in entered if details), "")
