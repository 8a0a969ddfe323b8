"""A local mode in which the tests play their runs, one after the other, and what is kept of each.

Used by workflow_scenarios and the tests. Real are the committed state machines, the handlers, the
emulated account, the cluster, the operator, the kubelet and the relay; only torchrun is a program
of the tests, so that a run takes seconds, and the relay's programs are forked instead of started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import boto3
import kubernetes

from stationmaster import commands
from stationmaster.cluster_upkeep import follow_up
from stationmaster.domain.cluster.aggregate import Cluster, new_cluster_id
from stationmaster.domain.cluster.events import (
    DeletionRequested,
    cluster_event_id,
)
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.commands.grammar import parse_request
from stationmaster.domain.commands.requests import CreateCluster
from stationmaster.domain.names import LABEL_CLUSTER_ID, NAMESPACE, TRAINING_NODE_GROUP, job_name
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.aggregate import new_run_id
from stationmaster.domain.run.events import RunRequested, run_event_id
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.local.aws.clock import SHORTEST_WAIT_S
from stationmaster.local.mode import LocalMode, LocalOptions
from stationmaster.local.slack.records import OPERATOR_ID, TEAM_ID, TRAINING_CHANNEL_ID
from stationmaster.services import Services
from stationmaster.steps.reap import reap
from tests.chaos.direct_calls import without_connection
from tests.chaos.forked_programs import add_programs
from tests.chaos.rules import ApiFault, Fault
from tests.chaos.runtime import InterferingRuntime
from tests.chaos.torchrun import programs_in
from tests.chaos.watched import DEADLINE_S, AnId, Watched

# A cluster takes a tenth of a second of real time.
SPEED = 4800.0
LIMITS = {
    f"{step}_timeout_s": DEADLINE_S / 2
    for step in ("provision", "plugin", "check", "job_start", "release_job", "release")
}


@dataclass
class World(Watched):
    """What people and accidents do to the runs of a local mode."""

    def request(
        self,
        name: str,
        *faults: Fault | ApiFault,
        plan: str = "",
        words: str = "",
        doubled: bool = False,
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
        words = f"tiny-llama nodes=1 seed={int(run_id[-6:], 16)} {words}".strip()
        if shared:
            self._request_shared(run_id, words, shared)
            return run_id
        run, _ = commands.request_run(
            self.services,
            parse_request(words.split()),
            request_id=name,
            who=commands.Actor(
                words=f"/train {words}",
                team_id=TEAM_ID,
                channel_id=TRAINING_CHANNEL_ID,
                user_id=OPERATOR_ID,
            ),
        )
        assert run.run_id == run_id
        return run_id

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

    def create_cluster(self, name: str, *, nodes: int = 4, ttl_s: int = 3600) -> Cluster:
        """Ask for a cluster that is kept, as a person does."""
        spec = spec_for(get_recipe("tiny-llama"), nodes=nodes, instance_type="m5.2xlarge")
        cluster, _ = commands.create_cluster(
            self.services,
            CreateCluster(name=name, spec=spec, ttl_s=ttl_s),
            request_id=name,
            who=commands.Actor(
                team_id=TEAM_ID, channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID
            ),
        )
        return cluster

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

    def stop(self, run_id: AnId) -> None:
        """Ask the run to stop, as a person does."""
        commands.stop_run(
            self.services,
            run_id,
            who=commands.Actor(channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID),
        )

    def save_again(self, run_id: AnId) -> None:
        """Ask for its results to be saved once more, as a person does."""
        commands.save_again(
            self.services,
            run_id,
            who=commands.Actor(channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID),
        )

    def give_up(self, run_id: AnId) -> None:
        """Let its results be deleted, as a person does."""
        commands.give_up_results(
            self.services,
            run_id,
            who=commands.Actor(channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID),
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

    def cordon(self, run_id: AnId, *, unschedulable: bool) -> None:
        """Close the run's training nodes to new pods, or open them again."""
        with kubernetes.config.new_client_from_config(str(self.mode.cluster.kubeconfig)) as client:
            core = kubernetes.client.CoreV1Api(client)
            for node in core.list_node(label_selector=f"{LABEL_CLUSTER_ID}={run_id}").items:
                core.patch_node(node.metadata.name, {"spec": {"unschedulable": unschedulable}})

    def definition(self, machine: str) -> str:
        """A state machine as it is deployed."""
        found = self.aws.client("stepfunctions").describe_state_machine(
            stateMachineArn=self.aws.state_machine_arn(machine)
        )
        return str(found["definition"])

    def reap(self) -> list[str]:
        """Run the reaper as two minutes from now, past the grace of what has just ended."""
        settings = self.mode.settings
        assert settings is not None
        return reap(Services(settings, now=lambda: datetime.now(UTC) + timedelta(minutes=2)))


def run_id_of(name: str) -> AnId:
    """The id that the run of a scenario gets."""
    return new_run_id("tiny-llama", dedup_key=f"{TEAM_ID}/{name}")


def cluster_id_of(name: str) -> AnId:
    """The id that a cluster of this name gets."""
    return new_cluster_id(name, dedup_key=f"{TEAM_ID}/{name}")


@contextmanager
def open_world(
    directory: Path,
    *,
    limits: Mapping[str, float] = LIMITS,
    shortest_wait_s: float = SHORTEST_WAIT_S,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[World]:
    """A started local mode, with the test's torchrun and a quick python first on its pods' path.

    What this process calls of AWS is handed over without a connection.
    """
    programs = programs_in(directory)
    add_programs(programs)
    runtime = InterferingRuntime()
    mode = LocalMode(
        LocalOptions(
            state_dir=directory / "state",
            port=0,
            speed=SPEED,
            runtime=runtime,
            limits=limits,
            shortest_wait_s=shortest_wait_s,
            settings=settings,
            extra_path=programs,
        )
    )
    with mode:
        assert mode.aws is not None
        assert boto3.DEFAULT_SESSION is not None
        runtime.send = without_connection(mode.aws)
        boto3.DEFAULT_SESSION.events.register("before-send", runtime.send)  # type: ignore[arg-type]  # its answer is the call's
        yield World(mode=mode, runtime=runtime, plans=directory / "plans")
