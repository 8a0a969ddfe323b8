"""One local mode in which many runs are played at the same time, and what is kept of each.

Used by workflow_scenarios and the tests. Real are the committed state machines, the handlers, the
emulated account, the cluster, the operator, the kubelet and the relay; only torchrun is a program
of the tests, so that a run takes seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kubernetes
from moto.stepfunctions.parser.models import stepfunctions_parser_backends
from workflow_runtime import ApiFault, Fault, InterferingRuntime

from local.mode import LocalMode, LocalOptions
from local.slack import OPERATOR_ID, TEAM_ID, TRAINING_CHANNEL_ID
from stationmaster import commands
from stationmaster.domain.events import RunEvent
from stationmaster.domain.grammar import parse_request
from stationmaster.domain.names import LABEL_RUN_ID, NAMESPACE, job_name
from stationmaster.domain.run import Run, TeardownStatus, new_run_id
from stationmaster.services import Services
from stationmaster.steps.reap import reap
from stationmaster.steps.verify_released import find_left

# A cluster takes a second of real time.
SPEED = 480.0
DEADLINE_S = 150.0
LIMITS = {"plugin_timeout_s": 90, "check_timeout_s": 90, "release_timeout_s": 45}

# Says what a trainer says. The run's plan decides how it ends: `fails` or `waits`.
_TORCHRUN = """\
#!/bin/sh
for word; do :; done
plan="$(cat "{plans}/${{word##*/}}" 2>/dev/null)"
echo '{{"stationmaster":1,"kind":"started","seq":0,"total_steps":2,"world_size":1}}'
echo '{{"stationmaster":1,"kind":"progress","seq":1,"step":1,"total_steps":2,"loss_nats":8.5}}'
if [ "$plan" = fails ]; then
  echo '{{"stationmaster":1,"kind":"failed","seq":2,"message":"the loss is not a number"}}'
  exit 1
fi
while [ "$plan" = waits ]; do sleep 0.2; done
echo '{{"stationmaster":1,"kind":"progress","seq":2,"step":2,"total_steps":2,"loss_nats":8.25}}'
echo '{{"stationmaster":1,"kind":"finished","seq":3,"step":2,"loss_nats":8.25}}'
"""


@dataclass(frozen=True)
class Execution:
    """How one execution ended, and everything that happened in it."""

    machine: str
    name: str
    status: str
    error: str
    cause: str
    history: list[dict[str, Any]]


@dataclass
class Outcome:
    """What is known of a run once nothing moves any more."""

    run: Run
    events: list[RunEvent]
    left: list[str]
    executions: list[Execution]

    @property
    def train(self) -> Execution:
        """The execution of the train workflow."""
        return next(each for each in self.executions if each.machine == "train")

    @property
    def teardowns(self) -> list[Execution]:
        """Every attempt at the teardown, in order."""
        return [each for each in self.executions if each.machine == "teardown"]

    def events_of(self, kind: str) -> list[RunEvent]:
        """Events of one type, in order."""
        return [event for event in self.events if event.type == kind]


@dataclass
class World:
    """The running local mode and the rules of its runtime."""

    mode: LocalMode
    runtime: InterferingRuntime
    plans: Path
    _count: int = field(default=0)

    @property
    def services(self) -> Services:
        """Services of a person or a test, made afresh: threads do not share them."""
        assert self.mode.settings is not None
        return Services.create(self.mode.settings)

    @property
    def aws(self) -> Any:
        """The account."""
        assert self.mode.aws is not None
        return self.mode.aws

    def request(
        self,
        name: str,
        *faults: Fault | ApiFault,
        plan: str = "",
        doubled: bool = False,
        services: Services | None = None,
        before: Callable[[str], None] | None = None,
    ) -> str:
        """Request a run with its rules in force from the first call on; returns its id."""
        run_id = run_id_of(name)
        (self.plans / run_id).write_text(plan)
        self.runtime.break_run(run_id, *faults)
        if doubled:
            self.runtime.double(run_id)
        if before is not None:
            before(run_id)
        words = f"tiny-llama nodes=1 seed={int(run_id[-6:], 16)}"
        run, _ = commands.request_run(
            services or self.services,
            parse_request(words.split()),
            request_id=name,
            command=f"/train {words}",
            team_id=TEAM_ID,
            channel_id=TRAINING_CHANNEL_ID,
            user_id=OPERATOR_ID,
        )
        assert run.run_id == run_id
        return run_id

    def stop(self, run_id: str) -> None:
        """Ask the run to stop, as a person does."""
        commands.stop_run(
            self.services, run_id, channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID
        )

    def kill(self, run_id: str) -> None:
        """Stop the run's train execution from outside."""
        self.aws.client("stepfunctions").stop_execution(
            executionArn=self._arn("train", run_id), cause="killed by the test"
        )

    def cordon(self, run_id: str, *, unschedulable: bool) -> None:
        """Close the run's training nodes to new pods, or open them again."""
        with kubernetes.config.new_client_from_config(str(self.mode.cluster.kubeconfig)) as client:
            core = kubernetes.client.CoreV1Api(client)
            for node in core.list_node(label_selector=f"{LABEL_RUN_ID}={run_id}").items:
                core.patch_node(node.metadata.name, {"spec": {"unschedulable": unschedulable}})

    def invoke(self, function: str, payload: bytes) -> Any:
        """Invoke a function through the Lambda API; what it answered."""
        answer = self.aws.client("lambda").invoke(FunctionName=function, Payload=payload)
        assert "FunctionError" not in answer, answer["Payload"].read()
        return json.loads(answer["Payload"].read())

    def definition(self, machine: str) -> str:
        """A state machine as it is deployed."""
        found = self.aws.client("stepfunctions").describe_state_machine(
            stateMachineArn=self.aws.state_machine_arn(machine)
        )
        return str(found["definition"])

    def until(self, condition: Callable[[], Any], what: str, *, limit_s: float = DEADLINE_S) -> Any:
        """Poll until the condition holds; what it returned."""
        deadline = time.monotonic() + limit_s
        while not (seen := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {limit_s:g} s: {what}")
            time.sleep(0.1)
        return seen

    def until_awaiting(self, run_id: str) -> None:
        """Wait until the workflow waits for its job and training has said something."""
        services = self.services
        self.until(lambda: services.runs.load_task_token(run_id), f"{run_id} awaits its job")
        self.until(lambda: services.runs.load(run_id).progress, f"{run_id} reports progress")

    def until_rested(self, run_id: str, *, torn_down: bool = False) -> Run:
        """Wait until the run has ended, its teardown too, and no execution of it runs."""
        services = self.services
        wanted = {TeardownStatus.COMPLETED} | (set() if torn_down else {TeardownStatus.FAILED})

        def rested() -> Run | None:
            run = services.runs.load(run_id)
            if not run.phase.is_terminal or run.teardown not in wanted:
                return None
            busy = any(each["status"] == "RUNNING" for _, each in self._executions(run_id))
            return None if busy else run

        try:
            run: Run = self.until(rested, f"{run_id} ends and is torn down")
        except TimeoutError as exc:
            raise TimeoutError(f"{exc}; {self._seen(run_id)}") from exc
        return run

    def until_still(self, run_id: str, *, still_s: float = 4.0) -> None:
        """Wait until no execution of the run has been running for a while, however it ended."""
        busy_at = time.monotonic()

        def still() -> bool:
            nonlocal busy_at
            if any(found["status"] == "RUNNING" for _, found in self._executions(run_id)):
                busy_at = time.monotonic()
            return time.monotonic() - busy_at > still_s

        self.until(still, f"nothing of {run_id} runs")

    def _seen(self, run_id: str) -> str:
        """Where a run hangs, for the person who reads the failure."""
        services = self.services
        run = services.runs.load(run_id)
        job = services.kubernetes(run_id).job(NAMESPACE, job_name(run_id))
        executions = [(found["name"], found["status"]) for _, found in self._executions(run_id)]
        return (
            f"run {run.phase}, teardown {run.teardown}, recorded job {run.job_condition!r}, "
            f"pods {list(run.pods.values())}, job in the cluster {job}, executions {executions}"
        )

    def reap(self) -> list[str]:
        """Run the reaper as two minutes from now, past the grace of what has just ended."""
        settings = self.mode.settings
        assert settings is not None
        return reap(Services(settings, now=lambda: datetime.now(UTC) + timedelta(minutes=2)))

    def outcome(self, run_id: str) -> Outcome:
        """Everything that is known of the run."""
        services = self.services
        return Outcome(
            run=services.runs.load(run_id),
            events=services.runs.events(run_id),
            left=find_left(services, run_id),
            executions=[
                Execution(
                    machine=machine,
                    name=found["name"],
                    status=found["status"],
                    error=found.get("error", ""),
                    cause=found.get("cause", ""),
                    history=self._history(found["executionArn"]),
                )
                for machine, found in self._executions(run_id)
            ],
        )

    def _arn(self, machine: str, name: str) -> str:
        arn: str = self.aws.state_machine_arn(machine)
        return f"{arn.replace(':stateMachine:', ':execution:')}:{name}"

    def _executions(self, run_id: str) -> list[tuple[str, dict[str, Any]]]:
        states = self.aws.client("stepfunctions")
        names = [("train", "train", run_id), ("short-heartbeat", "train", run_id)]
        names += [("teardown", "teardown", f"{run_id}-teardown-{n}") for n in range(1, 10)]
        found = []
        for machine, kind, name in names:
            try:
                answer = states.describe_execution(executionArn=self._arn(machine, name))
            except states.exceptions.ExecutionDoesNotExist:
                if machine == "teardown":
                    break
                continue
            found.append((kind, answer))
        return found

    def _history(self, arn: str) -> list[dict[str, Any]]:
        """Asked of the interpreter itself: tens of thousands of events as JSON take a minute."""
        backend = stepfunctions_parser_backends[self.aws.account_id][self.aws.region]
        return list(backend.describe_execution(arn).to_history_output()["events"])


def run_id_of(name: str) -> str:
    """The id that the run of a scenario gets."""
    return new_run_id("tiny-llama", dedup_key=f"{TEAM_ID}/{name}")


def programs_in(directory: Path) -> Path:
    """A folder of programs with the test's torchrun, which looks for plans in a folder beside."""
    plans, programs = directory / "plans", directory / "bin"
    plans.mkdir(parents=True)
    programs.mkdir()
    torchrun = programs / "torchrun"
    torchrun.write_text(_TORCHRUN.format(plans=plans))
    torchrun.chmod(0o755)
    return programs


def open_world(
    directory: Path, *, limits: Mapping[str, float] = LIMITS, faults: Sequence[str] = ()
) -> World:
    """A local mode that is not started yet, with the test's torchrun first on its pods' path."""
    programs = programs_in(directory)
    runtime = InterferingRuntime()
    mode = LocalMode(
        LocalOptions(
            state_dir=directory / "state",
            port=0,
            speed=SPEED,
            runtime=runtime,
            limits=limits,
            faults=frozenset(faults),
            extra_path=programs,
        )
    )
    return World(mode=mode, runtime=runtime, plans=directory / "plans")
