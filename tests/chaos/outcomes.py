"""What is known of a played run and its cluster once nothing moves any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunEvent
from stationmaster.domain.run.view import RunView


@dataclass(frozen=True)
class Execution:
    """How one execution ended, and everything that happened in it."""

    machine: str
    name: str
    status: str
    error: str
    cause: str
    history: list[dict[str, Any]]


@dataclass
class Outcome:
    """What is known of a run and its cluster once nothing moves any more."""

    run: Run
    cluster: Cluster | None
    events: list[RunEvent | ClusterEvent]
    left: list[str]
    executions: list[Execution]

    @property
    def train(self) -> Execution:
        """The execution of the train workflow."""
        return next(each for each in self.executions if each.machine == "train")

    @property
    def teardown(self) -> TeardownStatus:
        """Where the teardown is; that of the cluster, also where it was kept."""
        own = RunView(self.run, self.cluster).teardown
        return self.cluster.teardown if self.cluster is not None else own

    @property
    def billable_left(self) -> list[str]:
        """What the product's own records say is left."""
        return self.cluster.billable_left if self.cluster is not None else []

    @property
    def teardowns(self) -> list[Execution]:
        """Every attempt at the teardown, in order."""
        return [each for each in self.executions if each.machine == "teardown"]

    def events_of(self, kind: str) -> list[RunEvent | ClusterEvent]:
        """Events of one type, in order."""
        return [event for event in self.events if event.type == kind]
