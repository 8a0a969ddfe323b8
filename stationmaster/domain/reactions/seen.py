"""What is seen of a run without being recorded: facts that `decide` is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stationmaster.domain.cluster.events import ClusterPhase


@dataclass(frozen=True, slots=True)
class WaitOpen:
    """A workflow waits for the job: its wait has just begun, or the reaper looks at it."""

    at: datetime


@dataclass(frozen=True, slots=True)
class RelayHeard:
    """A batch of the relay has been recorded; with `heartbeat` the job is still there."""

    at: datetime
    heartbeat: bool


@dataclass(frozen=True, slots=True)
class Spent:
    """The run has cost so many dollars."""

    usd: float


@dataclass(frozen=True, slots=True)
class MonthSpent:
    """What a channel has asked for in `month` (2026-11) has cost so many dollars of its budget."""

    channel_id: str
    month: str
    usd: float
    budget_usd: float


@dataclass(frozen=True, slots=True)
class CapacityLost:
    """AWS says that nodes or the cluster of the run are deleted; `sentence` names them."""

    sentence: str


@dataclass(frozen=True, slots=True)
class SilenceExplained:
    """The cluster was looked at from outside: `why` nothing is heard, or the job `succeeded`."""

    sentence: str
    succeeded: bool


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The cluster that the run leases is in `phase`."""

    phase: ClusterPhase


@dataclass(frozen=True, slots=True)
class Queued:
    """The run is in the queue of its cluster, or waits for what `why` says."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class ClusterTaken:
    """The cluster that the run leases, or waits for, is torn down under it."""

    why: str = ""
    """The cluster's own reason; empty where it has none."""


@dataclass(frozen=True, slots=True)
class LeaseFound:
    """The reaper found that the run holds a lease."""

    at: datetime


@dataclass(frozen=True, slots=True)
class CardMissing:
    """The card with which the run starts was not posted; `refusal` says why it never can be."""

    at: datetime
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class WorkEnds:
    """The run's workflow no longer needs its cluster, as far as it knows."""
