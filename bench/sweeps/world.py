"""A local mode in which the tests play their runs, one after the other, and what is kept of each.

Used by workflow_scenarios and the tests. Real are the committed state machines, the handlers, the
emulated account, the cluster, the operator, the kubelet and the relay; only torchrun is a program
of the tests, so that a run takes seconds.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import kubernetes
from moto.stepfunctions.exceptions import ExecutionDoesNotExist
from moto.stepfunctions.parser.api import ExecutionStatus
from moto.stepfunctions.parser.models import stepfunctions_parser_backends

from bench.sweeps.direct_calls import without_connection
from bench.sweeps.outcomes import Execution, Outcome
from bench.sweeps.rules import ApiFault, Fault
from bench.sweeps.runtime import InterferingRuntime
from bench.sweeps.torchrun import programs_in
from local.mode import LocalMode, LocalOptions
from local.slack import OPERATOR_ID, TEAM_ID, TRAINING_CHANNEL_ID
from local.slack.records import Message
from stationmaster import commands
from stationmaster.aws.workflows import pass_name
from stationmaster.cluster_upkeep import follow_up
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus, new_cluster_id
from stationmaster.domain.cluster.events import (
    ClusterPhase,
    DeletionRequested,
    cluster_event_id,
)
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.commands.grammar import parse_request
from stationmaster.domain.commands.requests import CreateCluster
from stationmaster.domain.commands.storing import FoundFileSystem
from stationmaster.domain.names import LABEL_CLUSTER_ID, NAMESPACE, TRAINING_NODE_GROUP, job_name
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.aggregate import Run, Wait, new_run_id
from stationmaster.domain.run.events import RunRequested, run_event_id
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.services import Services
from stationmaster.steps.leftovers import find_left
from stationmaster.steps.reap import reap

# Of a run or of a cluster: the cluster of a run's own has the run's id.
AnId = Any
# A cluster takes a tenth of a second of real time.
SPEED = 4800.0
# Ends a hang; a machine that does fifty things at once must not reach it.
DEADLINE_S = 1800.0
LIMITS = {
    f"{step}_timeout_s": DEADLINE_S / 2
    for step in ("provision", "plugin", "check", "job_start", "release_job", "release")
}


@dataclass
class World:
    """The running local mode and the rules of its runtime."""

    mode: LocalMode
    runtime: InterferingRuntime
    plans: Path
    deadline_s: float = DEADLINE_S
    """For one wait."""
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

    def request(
        self,
        name: str,
        *faults: Fault | ApiFault,
        plan: str = "",
        words: str = "",
        doubled: bool = False,
        services: Services | None = None,
        before: Callable[[AnId], None] | None = None,
        **shared: Any,
    ) -> AnId:
        """Request a run with its rules in force from the first call on; returns its id.

        `shared` is what its request says of a cluster that it keeps or shares, beyond the words.
        """
        run_id = run_id_of(name)
        (self.plans / run_id).write_text(plan)
        self.runtime.break_run(run_id, *faults)
        if doubled:
            self.runtime.double(run_id)
        if before is not None:
            before(run_id)
        words = f"tiny-llama nodes=1 seed={int(run_id[-6:], 16)} {words}".strip()
        if shared:
            self._request_shared(run_id, words, shared)
            return run_id
        run, _ = commands.request_run(
            services or self.services,
            parse_request(words.split(), find_file_system=self.find_file_system),
            request_id=name,
            command=f"/train {words}",
            team_id=TEAM_ID,
            channel_id=TRAINING_CHANNEL_ID,
            user_id=OPERATOR_ID,
        )
        assert run.run_id == run_id
        return run_id

    def find_file_system(self, file_system_id: str) -> FoundFileSystem:
        """What the bot asks AWS, with time for an answer."""
        found = self.services.existing_file_systems.look_up(file_system_id)
        return FoundFileSystem(spec=found.spec, zone=found.zone)

    def _request_shared(self, run_id: AnId, words: str, shared: Mapping[str, Any]) -> None:
        services, start = self.services, parse_request(words.split())
        request = TrainingRequest(
            recipe=start.recipe,
            instance_type=start.plan.instance_type,
            overrides=start.overrides,
            command=f"/train {words}",
            team_id=TEAM_ID,
            channel_id=TRAINING_CHANNEL_ID,
            user_id=OPERATOR_ID,
            **({"nodes": 1} | dict(shared)),
        )
        now = services.now()
        requested = RunRequested(
            event_id=run_event_id(run_id, "requested"),
            run_id=run_id,
            at=now,
            request=request,
            price_per_hour_usd=start.plan.price_per_hour_usd,
            estimated_cost_usd=start.plan.estimated_cost_usd,
        )
        services.runs.create(requested, dedup_key=run_id, dedup_until=now + timedelta(minutes=1))
        services.workflows.start_train(run_id)

    def create_cluster(
        self,
        name: str,
        *,
        nodes: int = 4,
        ttl_s: int = 3600,
        before: Callable[[AnId], None] = lambda _: None,
    ) -> Cluster:
        """Ask for a cluster that is kept, as a person does; `before` gets its id."""
        before(new_cluster_id(name, dedup_key=f"{TEAM_ID}/{name}"))
        spec = spec_for(get_recipe("tiny-llama"), nodes=nodes, instance_type="m5.2xlarge")
        cluster, _ = commands.create_cluster(
            self.services,
            CreateCluster(name=name, spec=spec, ttl_s=ttl_s),
            request_id=name,
            team_id=TEAM_ID,
            channel_id=TRAINING_CHANNEL_ID,
            user_id=OPERATOR_ID,
        )
        return cluster

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

    def delete_cluster(self, cluster_id: AnId) -> None:
        """Ask for the end of a cluster, as a person does."""
        services = self.services
        event = DeletionRequested(
            event_id=cluster_event_id(cluster_id, "deletion"),
            cluster_id=cluster_id,
            at=services.now(),
            user_id=OPERATOR_ID,
        )
        follow_up(services, services.cluster_states.record(cluster_id, [event]))

    def let_end(self, run_id: AnId) -> None:
        """Let a run whose plan says that it waits train to its end."""
        (self.plans / run_id).write_text("")

    def until_left(self, run_id: AnId) -> None:
        """Wait until the run has ended, its workflow too; its cluster may stay."""

        def left() -> bool:
            train = [each for kind, each in self._executions(run_id) if kind == "train"]
            return bool(train) and train[0].exec_status != ExecutionStatus.RUNNING

        self.until(left, f"{run_id} ends")

    def stop(self, run_id: AnId) -> None:
        """Ask the run to stop, as a person does."""
        commands.stop_run(
            self.services, run_id, channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID
        )

    def save_again(self, run_id: AnId) -> None:
        """Ask for its results to be saved once more, as a person does."""
        commands.save_again(
            self.services, run_id, channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID
        )

    def give_up(self, run_id: AnId) -> None:
        """Let its results be deleted, as a person does."""
        commands.give_up_results(
            self.services, run_id, channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID
        )

    def kill(self, name: str, machine: str = "train") -> None:
        """Stop an execution from outside, and wait until the recorder has dealt with it.

        The first of a run's and of its cluster's have the run's id as their name.
        """
        arn = self._arn(machine, name)
        self.aws.client("stepfunctions").stop_execution(
            executionArn=arn, cause="killed by the test"
        )
        self.until(
            lambda: arn in self.runtime.told_dead, f"the recorder deals with the end of {name}"
        )

    def delete_job(self, run_id: AnId) -> None:
        """Delete the run's PyTorchJob behind the product's back."""
        self.services.kubernetes(run_id).delete(
            "kubeflow.org/v1", "PyTorchJob", name=job_name(run_id), namespace=NAMESPACE
        )

    def delete_training_nodes(self, run_id: AnId) -> None:
        """Delete the run's training node group behind the product's back."""
        self.services.node_groups.release(run_id, TRAINING_NODE_GROUP)

    def start_teardown(self, run_id: AnId) -> None:
        """Invoke the function that starts teardowns, as the event that the cluster drains does."""
        self.invoke("start-teardown", json.dumps({"detail": {"cluster_id": run_id}}).encode())

    def cordon(self, run_id: AnId, *, unschedulable: bool) -> None:
        """Close the run's training nodes to new pods, or open them again."""
        with kubernetes.config.new_client_from_config(str(self.mode.cluster.kubeconfig)) as client:
            core = kubernetes.client.CoreV1Api(client)
            for node in core.list_node(label_selector=f"{LABEL_CLUSTER_ID}={run_id}").items:
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

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Poll until the condition holds; what it returned."""
        deadline = time.monotonic() + self.deadline_s
        while not (seen := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {self.deadline_s:g} s: {what}")
            time.sleep(0.05)
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
        dead = {
            each.exec_arn
            for _, each in self._executions(run_id)
            if each.exec_status != ExecutionStatus.SUCCEEDED
        }
        if not dead <= self.runtime.told_dead or not self.aws.settle(timeout_s=1):
            return False
        # What was on its way may have started something.
        return not self._runs(run_id)

    def until_still(self, run_id: AnId) -> None:
        """Wait until nothing of the run is under way any more, however it ended."""
        self.until(lambda: self.is_still(run_id), f"nothing of {run_id} runs")

    def card(self, owner: str, headline: str) -> str:
        """The card of a run or a cluster as JSON: it names `owner`, and its text begins so."""
        return json.dumps(self._card(owner, headline).blocks)

    def click(self, owner: str, headline: str, action_id: str) -> None:
        """Click a button of a card, and confirm what it asks."""
        card = self._card(owner, headline)
        self.mode.slack.click(message_ts=card.ts, channel=card.channel, action_id=action_id)

    def directory_of(self, run_id: AnId) -> Path:
        """What the run sees as its output directory, on the file system of its own cluster."""
        volume = self.services.file_systems.mountable(run_id).file_system_id
        return Path(self.mode.options.state_dir, "file-systems", volume, "runs", run_id)

    def _card(self, owner: str, headline: str) -> Message:
        self.aws.settle(timeout_s=DEADLINE_S)
        (card,) = [
            message
            for message in self.mode.slack.messages()
            if message.text.startswith(headline) and f"`{owner}`" in json.dumps(message.blocks)
        ]
        return card

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

    def reap(self) -> list[str]:
        """Run the reaper as two minutes from now, past the grace of what has just ended."""
        settings = self.mode.settings
        assert settings is not None
        return reap(Services(settings, now=lambda: datetime.now(UTC) + timedelta(minutes=2)))

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
        backend = stepfunctions_parser_backends[self.aws.account_id][self.aws.region]
        names = [("train", "train", run_id), ("short-heartbeat", "train", run_id)]
        names += [("train", "train", f"{run_id}-{n}") for n in range(2, 5)]
        names += [("cluster", "cluster", pass_name(run_id, number)) for number in (1, 2, 3)]
        names += [("teardown", "teardown", f"{run_id}-teardown-{n}") for n in range(1, 10)]
        found = []
        for machine, kind, name in names:
            try:
                found.append((kind, backend.describe_execution(self._arn(machine, name))))
            except ExecutionDoesNotExist:
                if machine == "teardown":
                    break
        return found


def run_id_of(name: str) -> AnId:
    """The id that the run of a scenario gets."""
    return new_run_id("tiny-llama", dedup_key=f"{TEAM_ID}/{name}")


@contextmanager
def open_world(
    directory: Path, *, limits: Mapping[str, float] = LIMITS, faults: Sequence[str] = ()
) -> Iterator[World]:
    """A started local mode, with the test's torchrun first on its pods' path.

    What this process calls of AWS is handed over without a connection.
    """
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
    with mode:
        assert mode.aws is not None
        assert boto3.DEFAULT_SESSION is not None
        runtime.send = without_connection(mode.aws)
        boto3.DEFAULT_SESSION.events.register("before-send", runtime.send)  # type: ignore[arg-type]  # its answer is the call's
        yield World(mode=mode, runtime=runtime, plans=directory / "plans")
