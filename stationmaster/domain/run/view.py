"""A run with its cluster, and a kept cluster with its runs, as a person sees them. Pure.

Cards, threads, receipts and the result of `local run` are drawn from it. A run's cost is its share
of its cluster's; a run without a cluster has cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.shares import Span, cost_curve, paid_spans, shares
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase


@dataclass(frozen=True)
class RunView:
    """One run, and its cluster where it has come to one."""

    run: Run
    cluster: Cluster | None = None
    dashboard_url: str = ""  # of the deployment; "" where there is none

    @property
    def teardown(self) -> TeardownStatus:
        """Where the teardown is, as far as this run is concerned.

        A run that ended without a cluster has nothing to tear down. One on a kept cluster is over
        with its lease; the cluster's own card has the rest.
        """
        if self.cluster is not None and self.cluster.is_kept:
            is_over = (
                self.run.phase.is_terminal and self.run.run_id not in self.cluster.waiting_runs
            )
            return TeardownStatus.NOT_NEEDED if is_over else TeardownStatus.NOT_STARTED
        if self.cluster is not None:
            return self.cluster.teardown
        is_over = self.run.phase.is_terminal
        return TeardownStatus.COMPLETED if is_over else TeardownStatus.NOT_STARTED

    @property
    def is_live(self) -> bool:
        """Whether the run's work or its teardown is still in progress."""
        return self.teardown in (TeardownStatus.NOT_STARTED, TeardownStatus.RUNNING)

    @property
    def torn_down_at(self) -> datetime | None:
        """When all of the run was seen to be gone; on a kept cluster, when its lease ended."""
        if self.cluster is None:
            return self.run.ended_at
        if not self.cluster.is_kept:
            return self.cluster.torn_down_at
        lease = self.cluster.leases.get(self.run.run_id)
        return self.run.ended_at if lease is None else lease.released_at

    @property
    def place_in_queue(self) -> int | None:
        """The run's place in the queue of its cluster, from 1, or None."""
        queue = self.cluster.queue if self.cluster is not None else []
        runs = [waiting.run_id for waiting in queue]
        return runs.index(self.run.run_id) + 1 if self.run.run_id in runs else None

    @property
    def leased_nodes(self) -> int | None:
        """The training nodes that the run leases or leased; None before that is settled."""
        if self.cluster is None or self.cluster.spec.min_nodes is not None:
            return None
        lease = self.cluster.leases.get(self.run.run_id)
        return lease.nodes if lease is not None else None

    def waited_for_cluster(self, at: datetime) -> bool:
        """Say whether the run waited for its cluster at that time: before its own work began."""
        attempt = self.run.attempt
        if attempt is None or at < attempt.started_at:
            return False
        begun = (self.run.entered(RunPhase.STAGING), self.run.entered(RunPhase.SUBMITTING))
        until = next((each for each in begun if each is not None), self.run.ended_at)
        return until is None or at <= until

    def cost_usd(self, now: datetime) -> float:
        """Return the run's share of its cluster's cost until `now`; all, if nobody keeps it."""
        if self.cluster is None:
            return 0.0
        if not self.cluster.is_kept:
            return self.cluster.cost_usd(now)
        if forgotten := self._forgotten_lease(now):
            start, end = forgotten
            return self.run.price_per_hour_usd * (end - start).total_seconds() / 3600
        return shares(self.cluster, now).runs.get(self.run.run_id, 0.0)

    def paid_spans(self, now: datetime) -> list[Span]:
        """List the spans until `now` that the run's cost comes from."""
        if self.cluster is None:
            return []
        if not self.cluster.is_kept:
            return paid_spans(self.cluster, min(now, self.cluster.torn_down_at or now))
        forgotten = self._forgotten_lease(now)
        return [forgotten] if forgotten else paid_spans(self.cluster, now, self.run.run_id)

    def costs(self, now: datetime) -> list[tuple[datetime, float]]:
        """List its cost up to each time until `now` at which its price changed."""
        if self.cluster is None or self._forgotten_lease(now):
            return []
        run_id = self.run.run_id if self.cluster.is_kept else None
        return cost_curve(self.cluster, min(now, self.torn_down_at or now), run_id)

    def _forgotten_lease(self, now: datetime) -> Span | None:
        """Estimate when it leased a cluster that has forgotten that; None where it has not."""
        cluster, attempt = self.cluster, self.run.attempt
        if cluster is None or attempt is None or not cluster.folded.get("leases"):
            return None
        span = attempt.started_at, self.run.ended_at or now
        is_known = self.run.run_id in shares(cluster, now).runs
        return span if span[0] < span[1] and not is_known else None


@dataclass(frozen=True)
class ClusterView:
    """A kept cluster, with those of its runs that use it or wait for it."""

    cluster: Cluster
    runs: Mapping[RunId, Run] = field(default_factory=dict)
    emulated_speed: float | None = None
    """Emulated seconds in a real one, where its machines are emulated and cost nothing."""

    @property
    def is_live(self) -> bool:
        """Whether it exists, or is on its way in or out."""
        return self.cluster.teardown in (TeardownStatus.NOT_STARTED, TeardownStatus.RUNNING)


def named(subject: Run | Cluster) -> str:
    """Name a run or a cluster in a sentence."""
    return f"run {subject.run_id}" if isinstance(subject, Run) else f"cluster {subject.label}"


def channel_of(subject: Run | Cluster) -> str:
    """Return the channel in which something was asked for; "" of a cluster that nobody keeps."""
    asked = subject.request if isinstance(subject, Run) else subject.requester
    return asked.channel_id if asked is not None else ""


def asker_of(subject: Run | Cluster) -> str:
    """Return who has asked for what waits for an approval."""
    if isinstance(subject, Run):
        by = subject.approval.asked_by if subject.approval is not None else ""
        return by or subject.request.user_id
    asked = subject.change or subject.requester
    return asked.user_id if asked is not None else ""
