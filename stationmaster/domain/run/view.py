"""A run together with the cluster that its newest attempt leases, as a person sees the two. Pure.

Cards, threads, receipts and the result of `local run` are drawn from it. What is paid for is the
cluster; a run that came to no cluster has cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.run.aggregate import Run


@dataclass(frozen=True)
class RunView:
    """One run, and its cluster where it has come to one."""

    run: Run
    cluster: Cluster | None = None

    @property
    def teardown(self) -> TeardownStatus:
        """Where the teardown is; a run that ended without a cluster has nothing to tear down."""
        if self.cluster is not None:
            return self.cluster.teardown
        is_over = self.run.phase.is_terminal
        return TeardownStatus.COMPLETED if is_over else TeardownStatus.NOT_STARTED

    @property
    def is_live(self) -> bool:
        """Whether something is still under way: the run's work, or the teardown."""
        return self.teardown not in (TeardownStatus.COMPLETED, TeardownStatus.FAILED)

    @property
    def torn_down_at(self) -> datetime | None:
        """When everything was seen to be gone."""
        return self.run.ended_at if self.cluster is None else self.cluster.torn_down_at

    def cost_usd(self, now: datetime) -> float:
        """What the run's cluster has cost until `now`."""
        return self.cluster.cost_usd(now) if self.cluster is not None else 0.0
