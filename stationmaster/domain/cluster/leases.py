"""Who leases a cluster's training nodes, and who waits in its queue. Pure; used by `aggregate`.

The queue is in order: a run that fits does not overtake an earlier one that does not fit yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.cluster.events import LeaseGranted, LeaseReleased, LeaseRequested
from stationmaster.domain.cluster.standing import Standing
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.event import shared
from stationmaster.domain.ids import RunId

MAX_WAITING: Final = 100
"""The most runs in a cluster's queue; each takes 300 bytes of the cluster's item."""


class Lease(BaseModel):
    """A run's right to some of the training nodes, from grant to release."""

    model_config = ConfigDict(frozen=True)

    run_id: RunId
    nodes: int
    keep_s: int = 0
    """For how many seconds after the run the cluster is kept."""
    granted_at: datetime
    released_at: datetime | None = None


class Waiting(BaseModel):
    """A run in the queue, and how many nodes it wants."""

    model_config = ConfigDict(frozen=True)

    run_id: RunId
    nodes: int
    min_nodes: int | None = None
    """The least number that is enough, where fewer than `nodes` are; otherwise None."""
    keep_s: int = 0
    since: datetime

    @property
    def least_nodes(self) -> int:
        """The number of nodes without which the run does not begin."""
        return self.nodes if self.min_nodes is None else self.min_nodes

    def nodes_of(self, free: int) -> int:
        """Return how many of `free` nodes the run gets: as many as it may use, or 0."""
        return min(self.nodes, free) if self.least_nodes <= free else 0


@dataclass(frozen=True, slots=True)
class Room:
    """The training nodes of a cluster, and who has them or waits for them."""

    nodes: int
    leases: Mapping[RunId, Lease]
    past_leases: Sequence[Lease]
    queue: Sequence[Waiting]


def released_runs(leases: Mapping[RunId, Lease]) -> list[RunId]:
    """Return the runs of released leases, the oldest first."""
    return [run_id for run_id, lease in leases.items() if lease.released_at is not None]


def held_nodes(leases: Iterable[Lease]) -> int:
    """Count the training nodes of open leases."""
    return sum(lease.nodes for lease in leases if lease.released_at is None)


def _without(queue: Sequence[Waiting], run_id: RunId) -> list[Waiting]:
    return [waiting for waiting in queue if waiting.run_id != run_id]


def limited(known: Mapping[RunId, Lease], run_id: RunId | None, nodes: int) -> dict[RunId, Lease]:
    """Return the leases with that of a run, if it has one, cut to `nodes` nodes."""
    lease = known.get(run_id) if run_id is not None else None
    if lease is None or lease.nodes <= nodes:
        return dict(known)
    return {**known, lease.run_id: lease.model_copy(update={"nodes": nodes})}


def requested(standing: Standing, event: LeaseRequested, room: Room) -> dict[str, object]:
    """Return the changes with which a run asks for nodes."""
    standing.refuse_going(f"be leased by run {event.run_id}")
    if event.least_nodes > room.nodes:
        raise IllegalTransition(
            f"cluster {standing.label} has {room.nodes} training nodes, "
            f"run {event.run_id} wants {event.least_nodes}"
        )
    lease = room.leases.get(event.run_id)
    is_held = lease is not None and lease.released_at is None
    if is_held or any(waiting.run_id == event.run_id for waiting in room.queue):
        return {}  # asked again: it keeps its lease or its place
    return {"queue": [*room.queue, Waiting(**shared(event, Waiting), since=event.at)]}


def leased(standing: Standing, event: LeaseGranted, room: Room) -> dict[str, object]:
    """Return the changes with which a run gets nodes."""
    standing.refuse_going(f"be leased by run {event.run_id}")
    others = [lease for lease in room.leases.values() if lease.run_id != event.run_id]
    free = room.nodes - held_nodes(others)
    if event.nodes > free:
        raise IllegalTransition(
            f"cluster {standing.cluster_id} has {free} of {room.nodes} nodes free, "
            f"run {event.run_id} wants {event.nodes}"
        )
    earlier = room.leases.get(event.run_id)
    over = [earlier] if earlier is not None and earlier.released_at is not None else []
    lease = Lease(**shared(event, Lease), granted_at=event.at)
    return {
        "leases": {**room.leases, event.run_id: lease},
        "past_leases": [*room.past_leases, *over],
        "queue": _without(room.queue, event.run_id),
    }


def vacated(
    standing: Standing, event: LeaseReleased, room: Room, *, keep_until: datetime | None
) -> dict[str, object]:
    """Return the changes with which a run leaves the queue, or gives its nodes back.

    The keep of a lease begins with its release.
    """
    if any(waiting.run_id == event.run_id for waiting in room.queue):
        return {"queue": _without(room.queue, event.run_id)}
    lease = room.leases.get(event.run_id)
    if lease is None:
        raise standing.cannot(f"be left by run {event.run_id}, which has no lease")
    if lease.released_at is not None:
        return {}
    released = lease.model_copy(update={"released_at": event.at})
    changes: dict[str, object] = {"leases": {**room.leases, event.run_id: released}}
    until = event.at + timedelta(seconds=lease.keep_s)
    if lease.keep_s and (keep_until is None or until > keep_until):
        changes |= {"keep_until": until, "keep_set_at": event.at}
    return changes
