"""What the in-cluster steps take as services: the real gateway and store, AWS's services played.

The fixtures are in tests/gateway/conftest.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from moto import mock_aws

from stationmaster.aws.addons import Addon
from stationmaster.aws.clusters import EksCluster
from stationmaster.aws.data_links import DataLink
from stationmaster.aws.file_systems import FileSystem, FileSystems
from stationmaster.aws.node_groups import NodeGroup
from stationmaster.aws.table import table_definition
from stationmaster.domain.cluster.events import (
    ClusterPhase,
    ClusterPhaseChanged,
    ClusterRequested,
    LeaseGranted,
    ResourceCreated,
)
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import Assignment, first_assignment
from stationmaster.domain.run.events import AttemptStarted, PhaseChanged, RunPhase
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.local.cluster import LocalCluster
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.factories import DEPLOYMENT_KEY, make_requested
from tests.support.kubernetes_gateway_fixtures import CLUSTER_ID, REQUEST, RUN_ID


@dataclass
class ControlPlanes:
    """EKS clusters, as far as these steps ask for them."""

    gone: bool = False
    status: str = "ACTIVE"
    failure: Exception | None = None

    def describe(self, cluster_id: str) -> EksCluster | None:
        if self.failure is not None:
            raise self.failure
        if self.gone:
            return None
        return EksCluster(name=cluster_id, status=self.status, endpoint="there")


@dataclass
class Groups:
    """Node groups by name, each with its status; None where it was deleted."""

    statuses: dict[str, str | None] = field(
        default_factory=lambda: {"system": "ACTIVE", "training": "ACTIVE"}
    )

    def describe(self, cluster_id: str, name: str) -> NodeGroup | None:
        status = self.statuses[name]
        return None if status is None else NodeGroup(name=name, status=status)


@dataclass
class ClusterAddons:
    """Add-ons that run in the local cluster as soon as they are asked for."""

    cluster: LocalCluster | None
    status: str = "ACTIVE"
    asked: list[str] = field(default_factory=list)

    def describe(self, cluster_id: str, name: str) -> Addon | None:
        return Addon(status=self.status) if name in self.asked else None

    def ensure(self, cluster_id: str, name: str, *, run_id: str | None = None) -> None:
        self.asked.append(name)
        if self.status == "ACTIVE" and self.cluster is not None:
            self.cluster.install_addon(name)


class Fsx(FileSystems):
    """FSx with one file system that is available."""

    def __init__(self) -> None:
        pass

    def list_tagged(self, cluster_id: str) -> list[FileSystem]:
        return [
            FileSystem(
                file_system_id="fs-1",
                lifecycle="AVAILABLE",
                dns_name="fs-1.fsx.us-west-2.amazonaws.com",
                mount_name="abcdefgh",
                storage_gib=1200,
            )
        ]


@dataclass
class Links:
    """Associations of the cluster's file system, in the state that a test gives them."""

    lifecycle: str = "AVAILABLE"
    refusal: Exception | None = None
    made: list[DataLink] = field(default_factory=list)

    def describe(self, cluster_id: str) -> DataLink | None:
        states = {"lifecycle": self.lifecycle, "failure": "no access"}
        found = [each.model_copy(update=states) for each in self.made]
        return found[0] if found else None

    def ensure(
        self,
        cluster_id: str,
        *,
        file_system_id: str,
        path: str,
        source: str,
        run_id: str | None = None,
    ) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.made.append(
            DataLink(
                association_id="dra-12345678",
                file_system_id=file_system_id,
                path=path,
                source=source,
                lifecycle="CREATING",
            )
        )


@dataclass
class Waiting:
    """Step Functions, as far as a workflow that waits for its job hears of it."""

    said: list[tuple[str, str]] = field(default_factory=list)
    failure: Exception | None = None

    def wait_succeeded(self, token: str) -> None:
        self.said.append(("succeeded", ""))

    def wait_failed(self, token: str, *, error: str, cause: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.said.append((error, cause))

    def cluster_status(self, cluster_id: str, *, pass_number: int = 1) -> str:
        return "SUCCEEDED"

    def heartbeat(self, token: str) -> None:
        self.said.append(("heartbeat", ""))


class World(Services):
    """The product's services, of which AWS's slow ones are played; tests move its clock on."""

    def __init__(self, settings: Settings, cluster: LocalCluster | None = None) -> None:
        """`cluster` is the one behind EKS; without one nothing in it can be asked."""
        if cluster is not None:
            settings = settings.model_copy(update={"kubeconfig": str(cluster.kubeconfig)})
        super().__init__(settings, now=lambda: datetime.now(UTC) + timedelta(seconds=self.late_s))
        self.late_s = 0.0
        self.clusters, self.node_groups = ControlPlanes(), Groups()
        self.addons = ClusterAddons(cluster)
        self.file_systems, self.data_links = Fsx(), Links()
        self.workflows = Waiting()

    @property
    def gateway(self) -> KubernetesGateway:
        return self.kubernetes(CLUSTER_ID)

    def close(self) -> None:
        for gateway in self._gateways.values():
            gateway.close()

    def begin(
        self,
        *phases: RunPhase,
        request: TrainingRequest = REQUEST,
        assignment: Assignment | None = None,
    ) -> Run:
        """A run that has come through the phases, its cluster's last node group just active."""
        assignment = assignment or first_assignment(RUN_ID, request)
        about = {"run_id": RUN_ID, "at": self.now()}
        requested = make_requested(request=request, **about)
        self.runs.create(requested, dedup_key="k", dedup_until=self.now() + timedelta(minutes=1))
        attempt = AttemptStarted(event_id="attempt", **about, **dict(assignment))
        changes = [
            PhaseChanged(event_id=f"phase-{phase}", phase=phase, **about) for phase in phases
        ]
        recipe = get_recipe(request.recipe, request.model).with_overrides(request.overrides)
        placed = assignment.placement
        spec = spec_for(recipe, **dict(placed))
        of_cluster = {"cluster_id": CLUSTER_ID, "at": self.now()}
        self.cluster_states.create(
            ClusterRequested(event_id="requested", spec=spec, run_id=RUN_ID, **of_cluster),
            LeaseGranted(event_id="lease", run_id=RUN_ID, nodes=placed.nodes, **of_cluster),
        )
        phase, kind = ClusterPhase.PROVISIONING, ResourceKind.NODE_GROUP
        provisioning = ClusterPhaseChanged(event_id="provisioning", phase=phase, **of_cluster)
        nodes = ResourceCreated(event_id="nodes", kind=kind, name="training", **of_cluster)
        self.cluster_states.record(CLUSTER_ID, [provisioning, nodes])
        return self.runs.record(RUN_ID, [attempt, *changes])

    def events(self, kind: str) -> list[Any]:
        events = [*self.runs.events(RUN_ID), *self.cluster_states.events(CLUSTER_ID)]
        return [event for event in events if event.type == kind]


@contextmanager
def world_of(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster | None) -> Iterator[World]:
    """A world with an empty store on emulated DynamoDB."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        dynamodb = boto3.client("dynamodb", region_name="us-west-2")
        dynamodb.create_table(**table_definition("runs"))
        boto3.client("secretsmanager", region_name="us-west-2").create_secret(
            Name="relay", SecretString=json.dumps({"key": DEPLOYMENT_KEY})
        )
        settings = Settings(
            nemo_image="nemo:1",
            region="us-west-2",
            table_name="runs",
            bus_name="bus",
            relay_secret_id="relay",
            fsx_csi_role_arn="arn:aws:iam::1:role/fsx",
        )
        world = World(settings, cluster)
        yield world
        world.close()
