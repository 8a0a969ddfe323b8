"""A channel, its budget and what it runs, in a table in memory and on a clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.rules import Rules
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import attempt_id
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.factories import (
    START,
    TO_RUNNING,
    make_cluster_event,
    make_event,
    make_request,
    make_requested,
)
from tests.support.memory_table import MemoryTable

CHANNEL = "C0MONEY"
NODES = {"kind": ResourceKind.NODE_GROUP, "name": "training"}


class MoneyWorld:
    """One channel; nothing but the table is there."""

    def __init__(self, **together: float) -> None:
        self.at = START
        settings = Settings(region="r", table_name="t", bus_name="b")
        self.services = Services(settings, now=self.now)
        self.services.rules = Rules.model_validate({"channels": {CHANNEL: {"together": together}}})
        self.table: Any = MemoryTable(self.now)
        self.services._clients["dynamodb"] = self.table
        for name in ("workflows", "bus", "schedules"):
            setattr(self.services, name, Mock())

    def now(self) -> datetime:
        return self.at

    def requested(self, name: str, usd: float, **request: Any) -> ev.RunRequested:
        made = make_request(**{"channel_id": CHANNEL} | request)
        return make_requested(name, at=self.at, request=made, estimated_cost_usd=usd)

    def write(self, asked: ev.RunRequested, also: Sequence[dict[str, Any]] = ()) -> Run:
        once = {"dedup_key": asked.run_id, "dedup_until": self.at}
        return self.services.runs.create(asked, **once, also=also)[0]

    def train(self, name: str, *, usd_per_hour: float, **request: Any) -> None:
        """A run that trains on a cluster of its own, at this price."""
        self.write(self.requested(name, 0.5, **request))
        self.make_cluster(name, run_id=RunId(name))
        self.tell_cluster(name, cl.LeaseGranted, run_id=RunId(name), nodes=2)
        self.become_ready(name, usd_per_hour)
        self.run_on(name, name)

    def keep(self, name: str, *, usd_per_hour: float, hours: float) -> None:
        who = cl.Requester(team_id="T1", channel_id=CHANNEL, user_id="U1")
        until = self.at + timedelta(hours=hours)
        self.make_cluster(name, name=name, requester=who, keep_until=until)
        self.become_ready(name, usd_per_hour)

    def make_cluster(self, name: str, /, **more: Any) -> None:
        spec = spec_for(get_recipe("tiny-llama"), nodes=4, instance_type="m5.2xlarge")
        about = {"cluster_id": ClusterId(name), "at": self.at, "spec": spec}
        made = make_cluster_event(cl.ClusterRequested, event_id="requested", **about, **more)
        self.services.cluster_states.create(made)

    def become_ready(self, name: str, usd_per_hour: float) -> None:
        self.tell_cluster(name, cl.ClusterPhaseChanged, phase=ClusterPhase.PROVISIONING)
        self.tell_cluster(name, cl.ResourceRequested, **NODES, price_per_hour_usd=usd_per_hour)
        self.tell_cluster(name, cl.ResourceCreated, **NODES)
        for phase in (ClusterPhase.VALIDATING, ClusterPhase.READY):
            self.tell_cluster(name, cl.ClusterPhaseChanged, phase=phase)

    def resize(self, name: str, *, nodes: int, usd_per_hour: float) -> None:
        self.tell_cluster(name, cl.PassBegan, nodes=nodes)
        self.come(name, usd_per_hour=usd_per_hour)

    def come(self, name: str, *, usd_per_hour: float) -> None:
        """The nodes that a cluster is to have come, at this price of all."""
        self.tell_cluster(name, cl.ResourceRequested, **NODES, price_per_hour_usd=usd_per_hour)
        self.tell_cluster(name, cl.ClusterPhaseChanged, phase=ClusterPhase.READY)

    def run_on(self, name: str, cluster: str) -> None:
        """A run that leases a cluster trains there."""
        run = self.services.runs.load(RunId(name))
        about = {"attempt_id": attempt_id(run.run_id, 1), "cluster_id": ClusterId(cluster)}
        about |= {"placement": run.placement, "job": name, "rendezvous_id": name}
        self.tell(name, ev.AttemptStarted, **about)
        for phase in TO_RUNNING:
            self.tell(name, ev.PhaseChanged, phase=phase)

    def tell(self, name: str, kind: type, /, **values: Any) -> Run:
        about = {"event_id": f"{kind.__name__}-{values}-{self.at}", "run_id": name, "at": self.at}
        return self.services.runs.record(RunId(name), [make_event(kind, **about, **values)])

    def tell_cluster(self, name: str, kind: type, /, **values: Any) -> Cluster:
        about = {"event_id": f"{kind.__name__}-{values}-{self.at}", "cluster_id": ClusterId(name)}
        event = make_cluster_event(kind, at=self.at, **about, **values)
        return self.services.cluster_states.record(ClusterId(name), [event])

    def end(self, name: str) -> None:
        """The run ends, and nothing of its cluster is left."""
        self.tell(name, ev.PhaseChanged, phase=ev.RunPhase.STOPPED)
        self.tell_cluster(name, cl.ResourceDeleted, **NODES)

    def is_over(self, name: str) -> bool:
        """Whether a cluster is kept no longer."""
        until = self.services.cluster_states.load(ClusterId(name)).keep_until
        return until is not None and until <= self.at

    def cost(self, name: str) -> float:
        run = self.services.runs.load(RunId(name))
        cluster = run.cluster_id and self.services.cluster_states.find(run.cluster_id)
        return RunView(run, cluster or None).cost_usd(self.at)
