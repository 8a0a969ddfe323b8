"""Where a cluster is in its life, and what may follow. Pure.

`aggregate` hands it to what works out the changes of an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.ids import ClusterId

# Releasing and released are not among the targets: the teardown's own events lead there.
_TRANSITIONS: Final = {
    ClusterPhase.REQUESTED: (ClusterPhase.PROVISIONING, ClusterPhase.FAILED, ClusterPhase.DRAINING),
    ClusterPhase.PROVISIONING: (
        ClusterPhase.VALIDATING,
        ClusterPhase.READY,
        ClusterPhase.FAILED,
        ClusterPhase.DRAINING,
    ),
    ClusterPhase.VALIDATING: (ClusterPhase.READY, ClusterPhase.FAILED, ClusterPhase.DRAINING),
    ClusterPhase.READY: (ClusterPhase.FAILED, ClusterPhase.DRAINING),
    ClusterPhase.FAILED: (ClusterPhase.DRAINING,),
}
_GOING_AWAY: Final = frozenset(
    {ClusterPhase.DRAINING, ClusterPhase.RELEASING, ClusterPhase.RELEASED}
)


@dataclass(frozen=True, slots=True)
class Standing:
    """A cluster's names and phases."""

    cluster_id: ClusterId
    label: str
    phase: ClusterPhase
    phases: Sequence[tuple[ClusterPhase, datetime]]

    @property
    def is_going_away(self) -> bool:
        """Whether it drains or has drained."""
        return self.phase in _GOING_AWAY

    def entered(self, phase: ClusterPhase, at: datetime) -> dict[str, object]:
        """Return the changes with which the cluster enters another phase."""
        return {"phase": phase, "phases": [*self.phases, (phase, at)]}

    def followed(self, phase: ClusterPhase, at: datetime) -> dict[str, object]:
        """Return the same where that phase may follow.

        Raises:
            IllegalTransition: it cannot.
        """
        if phase not in _TRANSITIONS.get(self.phase, ()):
            raise self.cannot(f"become {phase.value}")
        return self.entered(phase, at)

    def refuse_going(self, what: str) -> None:
        """Raise where the cluster goes away or has failed."""
        if self.is_going_away or self.phase is ClusterPhase.FAILED:
            raise self.cannot(what)

    def cannot(self, what: str) -> IllegalTransition:
        """Make the refusal of an event that cannot follow."""
        return IllegalTransition(
            f"cluster {self.cluster_id} is {self.phase.value} and cannot {what}"
        )
