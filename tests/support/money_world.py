"""A channel, its budget and what it runs, in a table in memory and on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from stationmaster.aws.cluster_store import ClusterStore
from stationmaster.aws.guard_store import GuardStore
from stationmaster.aws.people_store import PeopleStore
from stationmaster.aws.run_store import RunStore
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
        for name, store in (
            ("runs", RunStore),
            ("cluster_states", ClusterStore),
            ("guard", GuardStore),
            ("people", PeopleStore),
        ):
            setattr(self.services, name, store("t", self.table))
        nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        self.services.workflows = SimpleNamespace(start_cluster=nothing)  # type: ignore[assignment]
        self.services.bus = SimpleNamespace(cluster_drained=nothing)  # type: ignore[assignment]
        self.services.schedules = SimpleNamespace(put=nothing)  # type: ignore[assignment]

    def now(self) -> datetime:
        return self.at

    def requested(self, name: str, usd: float, **request: Any) -> ev.RunRequested:
        made = make_request(**{"channel_id": CHANNEL} | request)
        return make_requested(name, at=self.at, request=made, estimated_cost_usd=usd)

    def write(self, asked: ev.RunRequested, also: Sequence[dict[str, Any]] = ()) -> Run:
        until = self.at + timedelta(seconds=30)
        return self.services.runs.create(
            asked, dedup_key=asked.run_id, dedup_until=until, also=also
        )[0]

    def train(self, name: str, *, usd_per_hour: float, **request: Any) -> Run:
        """A run that trains on a cluster of its own, at this price."""
        self.write(self.requested(name, 0.5, **request))
        self.make_cluster(name, run_id=RunId(name))
        self.tell_cluster(name, cl.LeaseGranted, run_id=RunId(name), nodes=2)
        self.become_ready(name, usd_per_hour)
        return self.run_on(name, name)

    def keep(self, name: str, *, usd_per_hour: float, hours: float) -> Cluster:
        who = cl.Requester(team_id="T1", channel_id=CHANNEL, user_id="U1")
        until = self.at + timedelta(hours=hours)
        self.make_cluster(name, name=name, requester=who, keep_until=until)
        return self.become_ready(name, usd_per_hour)

    def make_cluster(self, name: str, /, **more: Any) -> None:
        spec = spec_for(get_recipe("tiny-llama"), nodes=4, instance_type="m5.2xlarge")
        about = {"cluster_id": ClusterId(name), "at": self.at, "spec": spec}
        made = make_cluster_event(cl.ClusterRequested, event_id="requested", **about, **more)
        self.services.cluster_states.create(made)

    def become_ready(self, name: str, usd_per_hour: float) -> Cluster:
        self.tell_cluster(name, cl.ClusterPhaseChanged, phase=ClusterPhase.PROVISIONING)
        self.tell_cluster(name, cl.ResourceRequested, **NODES, price_per_hour_usd=usd_per_hour)
        self.tell_cluster(name, cl.ResourceCreated, **NODES)
        for phase in (ClusterPhase.VALIDATING, ClusterPhase.READY):
            self.tell_cluster(name, cl.ClusterPhaseChanged, phase=phase)
        return self.services.cluster_states.load(ClusterId(name))

    def run_on(self, name: str, cluster: str) -> Run:
        """A run that leases a cluster trains there."""
        run = self.services.runs.load(RunId(name))
        self.tell(
            name,
            ev.AttemptStarted,
            attempt_id=attempt_id(run.run_id, 1),
            cluster_id=ClusterId(cluster),
            placement=run.placement,
            job=name,
            rendezvous_id=name,
        )
        for phase in TO_RUNNING:
            run = self.tell(name, ev.PhaseChanged, phase=phase)
        return run

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
