"""A line of a training container's log, and what its pod's specification adds to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stationmaster.domain.ids import RunId


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a container: `stamp` in UTC with nine decimals, `ordinal` among its equals."""

    stamp: str
    ordinal: int
    text: str

    @property
    def at(self) -> datetime:
        """The stamp as a time, in microseconds."""
        return datetime.fromisoformat(self.stamp[:26] + "+00:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What a pod's specification says that its log lines leave out."""

    run_id: RunId
    job: str
    """The name of its job, which no other attempt at the run has."""
    name: str
    """Its place in the job, by which events name it: a later pod takes the same place."""
    container: str
    """The container whose log is read."""
    uid: str
    attempt: int = 1
    max_restarts: int | None = None  # of torch elastic; None when the specification does not say
    total_steps: int | None = None
    num_efa: int = 0
    """EFA interfaces that it has to exchange with other pods; 0 for a pod that is alone."""
