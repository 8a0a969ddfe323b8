"""Requests, runs, clusters and their events: made here for all tests, of one small recipe.

Every function takes what a test is about as keywords; the rest is the same everywhere.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import SecretStr

from stationmaster.domain.bus import relay_key, signature
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.aggregate import Cluster, start
from stationmaster.domain.cluster.changes import apply
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.reactions.cluster import consequences
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run, start_run
from stationmaster.domain.run.request import TrainingRequest

START = datetime(2026, 11, 20, 18, 0, tzinfo=UTC)
RUN_ID = RunId("tiny-llama-0a1b2c3d")
CLUSTER_ID = ClusterId("tiny-llama-0a1b2c3d")
TO_RUNNING = (
    ev.RunPhase.PROVISIONING,
    ev.RunPhase.VALIDATING,
    ev.RunPhase.SUBMITTING,
    ev.RunPhase.RUNNING,
)

DEPLOYMENT_KEY = "key-of-the-relays-of-a-deployment"

Event = TypeVar("Event", bound=Any)


def signed(detail: dict[str, Any], *, run_id: str = "") -> dict[str, Any]:
    """The detail of a batch, signed by the relay of its run, or of another."""
    key = relay_key(SecretStr(DEPLOYMENT_KEY), RunId(run_id or detail["run_id"]))
    return {**detail, "signature": signature(detail, key)}


def make_request(**values: Any) -> TrainingRequest:
    """tiny-llama on two nodes, typed by one person in one channel."""
    usual = {
        "recipe": "tiny-llama",
        "nodes": 2,
        "instance_type": "m5.2xlarge",
        "command": "/train tiny-llama nodes=2",
        "team_id": "T1",
        "channel_id": "C1",
        "user_id": "U1",
    }
    return TrainingRequest(**(usual | values))


def make_event(
    kind: type[Event],
    /,
    *,
    event_id: str = "e",
    run_id: str = RUN_ID,
    at: datetime = START,
    **values: Any,
) -> Event:
    """An event of a run."""
    return kind(event_id=event_id, run_id=RunId(run_id), at=at, **values)


def make_requested(
    run_id: str = RUN_ID,
    *,
    at: datetime = START,
    request: TrainingRequest | None = None,
    **values: Any,
) -> ev.RunRequested:
    """The first event of a run."""
    usual = {
        "event_id": ev.run_event_id(run_id, "requested"),
        "request": request or make_request(),
        "price_per_hour_usd": 1.0,
        "estimated_cost_usd": 0.5,
    }
    return make_event(ev.RunRequested, run_id=run_id, at=at, **(usual | values))


def make_run(phase: ev.RunPhase = ev.RunPhase.REQUESTED, **values: Any) -> Run:
    """A run in a phase; `values` are put in place of what its request has made."""
    return start_run(make_requested()).model_copy(update={"phase": phase} | values)


def make_cluster_event(
    kind: type[Event],
    /,
    *,
    event_id: str = "e",
    cluster_id: str = CLUSTER_ID,
    at: datetime = START,
    **values: Any,
) -> Event:
    """An event of a cluster."""
    return kind(event_id=event_id, cluster_id=ClusterId(cluster_id), at=at, **values)


def make_cluster(
    phase: ClusterPhase = ClusterPhase.REQUESTED, *, nodes: int = 2, leased: bool = True
) -> Cluster:
    """The cluster of `make_run`, leased to it unless a keyword says otherwise."""
    spec = spec_for(get_recipe("tiny-llama"), nodes=nodes, instance_type="m5.2xlarge")
    requested = make_cluster_event(cluster_events.ClusterRequested, spec=spec, run_id=RUN_ID)
    cluster = start(requested)
    if leased:
        granted = make_cluster_event(cluster_events.LeaseGranted, run_id=RUN_ID, nodes=nodes)
        cluster = apply(cluster, granted)
    return cluster.model_copy(update={"phase": phase})


def walk(cluster: Cluster, *events: ClusterEvent) -> Cluster:
    """Apply events with what follows from them, as the store does."""
    queue = list(events)
    while queue:
        cluster = apply(cluster, queue[0])
        queue = [*consequences(cluster, queue[0]), *queue[1:]]
    return cluster
