"""Steps on an AWS of their own in this process: no Kubernetes, no Slack, none of our workflows.

The fixtures are in tests/steps/conftest.py. Services and store are the product's own; the account
is the local endpoint, on which a creation takes a millisecond or, where SPEED is IDLE, never ends
by itself. In place of the three workflows there are some that only wait.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from stationmaster.aws import table
from stationmaster.aws.table import table_definition
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase
from stationmaster.domain.cluster.spec import ClusterSpec, Reservation, Window, spec_for
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import cluster_name, launch_template_name
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import attempt_id
from stationmaster.domain.run.request import Placement
from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    LocalAws,
)
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.artifacts_world import BUCKET
from tests.support.aws_fixtures import until
from tests.support.factories import (
    DEPLOYMENT_KEY,
    START,
    TO_RUNNING,
    make_cluster_event,
    make_event,
    make_request,
    make_requested,
)

QUICK = 600_000.0
IDLE = 1e-4
RUN_IDS = (RunId(f"tiny-llama-{number:08x}") for number in count())
WAITING = {
    "StartAt": "Wait",
    "States": {"Wait": {"Type": "Wait", "Seconds": 30_000_000, "End": True}},
}
# Step Functions answers for them; what they are to bring about, tests call themselves.
MACHINES = ("cluster", "train", "teardown")
Step = Callable[..., dict[str, bool]]
P5_BLOCK = {"recipe": "llama2-7b", "nodes": 2, "instance_type": "p5.48xlarge"}


def block(starts_at: datetime) -> Reservation:
    """A capacity block of two days."""
    return Reservation(
        reservation_id="cr-0123456789abcdef0",
        zone="us-west-2b",
        window=Window(starts_at=starts_at, ends_at=starts_at + timedelta(days=2)),
    )


@dataclass
class Account:
    """One run and its cluster in an account, and the clock that their steps look at."""

    aws: LocalAws
    settings: Settings
    run_id: RunId = field(default_factory=lambda: next(RUN_IDS))
    late: timedelta = timedelta()

    def __post_init__(self) -> None:
        self.restart()
        # Not the run's id, so that a step which takes one for the other finds nothing.
        self.cluster_id = ClusterId(f"{self.run_id}-c")

    def now(self) -> datetime:
        return START + self.late

    def restart(self) -> None:
        """Call from a new process: nothing is known but what is written."""
        self.services = Services(self.settings, now=self.now)

    def set(self, **values: object) -> None:
        """Change settings, as a deployment does; steps are called from a new process."""
        self.settings = self.settings.model_copy(update=values)
        self.restart()

    def come_to(self, time: datetime) -> None:
        self.late += time - self.now()

    def pass_time(self) -> None:
        """Let every limit of a step pass."""
        self.late += timedelta(days=1)

    def set_in_future(self) -> None:
        """Let the steps' clock be ahead of this machine's: one-time schedules do not fire."""
        self.late += timedelta(days=3650)

    @property
    def clock(self) -> datetime | None:
        """When the clock of the cluster rings, or None where it has none."""
        client = self.aws.client("scheduler")
        try:
            found = client.get_schedule(GroupName="clocks", Name=self.cluster_id)
        except client.exceptions.ResourceNotFoundException:
            return None
        time = found["ScheduleExpression"].removeprefix("at(").removesuffix(")")
        return datetime.fromisoformat(time).replace(tzinfo=UTC)

    def ask(self, **request: object) -> Run:
        """A new run, requested; it has come to no cluster."""
        requested = make_requested(self.run_id, at=self.now(), request=make_request(**request))
        self.services.runs.create(
            requested, dedup_key=self.run_id, dedup_until=self.now() + timedelta(seconds=30)
        )
        return self.run

    def lease(self, **request: object) -> Run:
        """A new run whose first attempt leases a cluster, of which nothing is made."""
        wanted = self.ask(**request).request
        spec = spec_for(
            wanted.resolved,
            nodes=wanted.nodes,
            min_nodes=wanted.min_nodes,
            instance_type=wanted.instance_type,
        ).model_copy(
            update={
                "reservation": wanted.reservation,
                "is_spot": wanted.is_spot,
                "eks_name": wanted.eks_name,
            }
        )
        about = {"cluster_id": self.cluster_id, "at": self.now(), "run_id": self.run_id}
        self.services.cluster_states.create(
            make_cluster_event(
                cluster_events.ClusterRequested, event_id="requested", spec=spec, **about
            ),
            make_cluster_event(
                cluster_events.LeaseGranted, event_id="lease", nodes=wanted.nodes, **about
            ),
        )
        return self.happen(
            ev.AttemptStarted,
            attempt_id=attempt_id(self.run_id, 1),
            cluster_id=self.cluster_id,
            placement=Placement(nodes=wanted.nodes, instance_type=wanted.instance_type),
            job=self.run_id,
            rendezvous_id=self.run_id,
        )

    def request(self, **request: object) -> Run:
        """A new run that waits for its cluster, which is provisioning."""
        self.lease(**request)
        self.happen_to_cluster(cluster_events.ClusterPhaseChanged, phase=ClusterPhase.PROVISIONING)
        return self.enter(ev.RunPhase.PROVISIONING)

    def keep(
        self,
        *phases: ClusterPhase,
        nodes: int = 4,
        spec: ClusterSpec | None = None,
        idle_s: int = 0,
    ) -> Cluster:
        """A cluster that someone keeps and no run leases, taken through these phases.

        `spec` is what it is made of, where that is not `nodes` m5.2xlarge.
        """
        usual = spec_for(get_recipe("tiny-llama"), nodes=nodes, instance_type="m5.2xlarge")
        self.services.cluster_states.create(
            make_cluster_event(
                cluster_events.ClusterRequested,
                event_id="requested",
                cluster_id=self.cluster_id,
                at=self.now(),
                spec=spec or usual,
                name=f"lab-{self.cluster_id}",
                requester=cluster_events.Requester(team_id="T1", channel_id="C1", user_id="U1"),
                keep_until=self.now() + timedelta(hours=8),
                idle_s=idle_s,
            )
        )
        for phase in phases:
            self.happen_to_cluster(cluster_events.ClusterPhaseChanged, phase=phase)
        return self.cluster

    def guest(self, name: str, **request: object) -> Account:
        """Another run, which is to train on the same cluster; it has asked for no nodes yet."""
        guest = replace(self, run_id=RunId(f"{self.run_id}-{name}"))
        guest.cluster_id = self.cluster_id
        guest.ask(cluster_id=self.cluster_id, **request)
        return guest

    def enter(self, *phases: ev.RunPhase, reason: str = "") -> Run:
        about = {"run_id": self.run_id, "at": self.now(), "reason": reason}
        changes = [
            make_event(ev.PhaseChanged, event_id=f"{phase}-{self.late}", phase=phase, **about)
            for phase in phases
        ]
        return self.services.runs.record(self.run_id, changes)

    def train(self) -> Run:
        """A new run whose job is training."""
        self.request()
        return self.enter(*TO_RUNNING[1:])

    def happen(self, kind: type, /, **values: object) -> Run:
        """Record an event of the run as if another part of the product had."""
        event_id = f"{kind.__name__}-{values}-{self.late}"[-300:]
        event = make_event(kind, event_id=event_id, run_id=self.run_id, at=self.now(), **values)
        return self.services.runs.record(self.run_id, [event])

    def happen_to_cluster(self, kind: type, /, **values: object) -> Cluster:
        """Record an event of the cluster as if another part of the product had."""
        event = make_cluster_event(
            kind,
            event_id=f"{kind.__name__}-{values}-{self.late}",
            cluster_id=self.cluster_id,
            at=self.now(),
            **values,
        )
        return self.services.cluster_states.record(self.cluster_id, [event])

    @property
    def run(self) -> Run:
        return self.services.runs.load(self.run_id)

    @property
    def cluster(self) -> Cluster:
        return self.services.cluster_states.load(self.cluster_id)

    @property
    def versions(self) -> tuple[int, int]:
        """Of the run and of its cluster: every write changes one of them."""
        return self.run.version, self.cluster.version

    def events(self, kind: str) -> list[ev.RunEvent | ClusterEvent]:
        """Those of the run and those of its cluster."""
        of_run = self.services.runs.events(self.run_id)
        of_cluster = self.services.cluster_states.events(self.cluster_id)
        return [event for event in (*of_run, *of_cluster) if event.type == kind]

    def lose(self, kind: str) -> None:
        """Delete the item of the run, or of the cluster: `kind` is RUN or CLUSTER."""
        self.aws.client("dynamodb").delete_item(
            TableName=self.settings.table_name, Key=self._item(kind)
        )

    def damage(self, kind: str, body: str = '{"half": ') -> None:
        """Write over that item what no version of the product can read."""
        self.aws.client("dynamodb").update_item(
            TableName=self.settings.table_name,
            Key=self._item(kind),
            UpdateExpression="SET body = :body",
            ExpressionAttributeValues={":body": {"S": body}},
        )

    def _item(self, kind: str) -> dict[str, dict[str, str]]:
        owner = self.run_id if kind == "RUN" else self.cluster_id
        return table.state(kind, owner).attributes

    def call(self, step: Step, **arguments: str) -> bool:
        """Call a step of the cluster once; whether it is done."""
        return step(self.services, self.cluster_id, **arguments)["ready"]

    def finish(self, step: Step, **arguments: str) -> None:
        """Call the step as the state machine does, until it is done; a second passes each time."""

        def is_done() -> bool:
            self.late += timedelta(seconds=1)
            return self.call(step, **arguments)

        until(is_done)

    def node_group(self, name: str = "training") -> dict[str, Any]:
        """A node group, as EKS describes it."""
        about = {"clusterName": cluster_name(self.cluster_id), "nodegroupName": name}
        return self.aws.client("eks").describe_nodegroup(**about)["nodegroup"]

    def template(self, node_group: str = "training") -> dict[str, Any]:
        """What the launch template of a node group says of its instances."""
        (version,) = self.aws.client("ec2").describe_launch_template_versions(
            LaunchTemplateName=launch_template_name(self.cluster_id, node_group)
        )["LaunchTemplateVersions"]
        return version["LaunchTemplateData"]

    def changes(self, step: Step, **arguments: str) -> list[str]:
        """What one more call of a step asks AWS to change, beside the store."""
        self.aws.forget_calls()
        self.call(step, **arguments)
        calls = [operation for service, operation in self.aws.calls if service != "dynamodb"]
        return [name for name in calls if not name.startswith(("Describe", "List", "Get"))]


def deployed(aws: LocalAws) -> Settings:
    aws.client("dynamodb").create_table(**table_definition("runs"))
    made: Deployment = aws.deploy(
        DeploymentSpec(
            buses=["events"],
            buckets=[BUCKET],
            secrets={"relay": json.dumps({"key": DEPLOYMENT_KEY})},
            roles=["eks-cluster"],
            network="stationmaster",
            schedule_groups=["clocks"],
            state_machines=dict.fromkeys(MACHINES, json.dumps(WAITING)),
        )
    )
    role = made.role_arns["eks-cluster"]
    return Settings(
        region=aws.region,
        table_name="runs",
        bus_name="events",
        artifacts_bucket=BUCKET,
        schedule_group="clocks",
        keep_clock_function_arn=aws.function_arn("keep-clock"),
        scheduler_role_arn=role,
        **{f"{name}_state_machine_arn": made.state_machine_arns[name] for name in MACHINES},
        vpc_id=made.vpc_id,
        subnet_ids=tuple(made.subnet_ids),
        cluster_role_arn=role,
        node_role_arn=role,
        relay_role_arn=role,
        saver_role_arn=role,
        relay_secret_id="relay",
        cluster_access_role_arns=(role,),
    )
