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


def joined(queue: Sequence[Waiting], event: LeaseRequested) -> list[Waiting]:
    """Return the queue with the run of `event` at its end; a run in it keeps its place."""
    if any(waiting.run_id == event.run_id for waiting in queue):
        return list(queue)
    return [*queue, Waiting(**shared(event, Waiting), since=event.at)]


def left(queue: Sequence[Waiting], run_id: RunId) -> list[Waiting]:
    """Return the queue without a run."""
    return [waiting for waiting in queue if waiting.run_id != run_id]


def granted(known: Mapping[RunId, Lease], event: LeaseGranted) -> dict[RunId, Lease]:
    """Return the leases with a new one."""
    return {**known, event.run_id: Lease(**shared(event, Lease), granted_at=event.at)}


def limited(known: Mapping[RunId, Lease], run_id: RunId | None, nodes: int) -> dict[RunId, Lease]:
    """Return the leases with that of a run, if it has one, cut to `nodes` nodes."""
    lease = known.get(run_id) if run_id is not None else None
    if lease is None or lease.nodes <= nodes:
        return dict(known)
    return {**known, lease.run_id: lease.model_copy(update={"nodes": nodes})}


def released(known: Mapping[RunId, Lease], event: LeaseReleased) -> dict[RunId, Lease]:
    """Return the leases once that of a run is released; a second release changes nothing."""
    lease = known[event.run_id]
    if lease.released_at is not None:
        return dict(known)
    return {**known, event.run_id: lease.model_copy(update={"released_at": event.at})}


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
    return {} if is_held else {"queue": joined(room.queue, event)}


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
    return {
        "leases": granted(room.leases, event),
        "past_leases": [*room.past_leases, *over],
        "queue": left(room.queue, event.run_id),
    }


def vacated(
    standing: Standing, event: LeaseReleased, room: Room, *, keep_until: datetime | None
) -> dict[str, object]:
    """Return the changes with which a run leaves the queue, or gives its nodes back.

    The keep of a lease begins with its release.
    """
    if any(waiting.run_id == event.run_id for waiting in room.queue):
        return {"queue": left(room.queue, event.run_id)}
    lease = room.leases.get(event.run_id)
    if lease is None:
        raise standing.cannot(f"be left by run {event.run_id}, which has no lease")
    changes: dict[str, object] = {"leases": released(room.leases, event)}
    until = event.at + timedelta(seconds=lease.keep_s)
    is_longer = keep_until is None or until > keep_until
    if lease.released_at is None and lease.keep_s and is_longer:
        changes |= {"keep_until": until, "keep_set_at": event.at}
    return changes
