"""One command of `local run`, as it was typed, and what it has caused.

`local_script` types it and waits for its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from stationmaster.domain.cluster.events import (
    ClusterEvent,
    ClusterRequested,
    DeletionRequested,
    PassBegan,
)
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import (
    ListClusters,
    ListRuns,
    ShowCluster,
    ShowHelp,
    ShowLogs,
    ShowPlan,
    ShowPreflight,
    ShowRecipes,
    ShowStatus,
)
from stationmaster.domain.errors import UserError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.events import RunEvent, RunRequested, StopRequested

_QUESTIONS: Final = (
    ShowHelp,
    ShowRecipes,
    ShowPlan,
    ShowPreflight,
    ListRuns,
    ShowStatus,
    ShowLogs,
    ListClusters,
    ShowCluster,
)


@dataclass
class Typed:
    """One command that was typed, and what it has caused."""

    text: str
    started: float
    at: datetime
    """When it was typed, by the clock of the events."""
    runs: list[RunId] = field(default_factory=list)
    clusters: list[ClusterId] = field(default_factory=list)
    """Those that it makes or changes: it ends when they are ready, or gone."""
    gone: list[ClusterId] = field(default_factory=list)
    """Those that it deletes: it ends when they are gone."""
    stopped: list[RunId] = field(default_factory=list)
    """Runs of earlier commands that it stops: it ends when they have."""
    is_accepted: bool = False
    is_question: bool = False
    timed_out: bool = False
    wall_s: float = 0.0


def take_in(typed: Typed, effect: RunEvent | ClusterEvent) -> None:
    """Remember what a command has caused; what an earlier run caused meanwhile is left out."""
    match effect:
        case RunRequested():
            typed.runs.append(effect.run_id)
        case StopRequested():
            typed.stopped.append(effect.run_id)
        case ClusterRequested(run_id=None):
            typed.clusters.append(effect.cluster_id)
        case PassBegan(user_id=user_id) if user_id:
            typed.clusters.append(effect.cluster_id)
        case DeletionRequested():
            typed.gone.append(effect.cluster_id)
        case ClusterRequested() | PassBegan():
            return  # by a run of an earlier command
    typed.is_accepted = True


def is_question(text: str) -> bool:
    """Say whether it only asks; a command that is refused is none."""
    try:
        return isinstance(parse_command(text), _QUESTIONS)
    except UserError:
        return text.split(maxsplit=1)[:1] == ["plan"]
