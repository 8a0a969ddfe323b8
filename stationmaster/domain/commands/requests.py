"""What a person can ask for: one class a command, with its words read and checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.registry import Options


@dataclass(frozen=True)
class ShowPlan:
    """Show what starting would create and cost, and create nothing."""

    request: StartRun


@dataclass(frozen=True)
class ShowPreflight:
    """Show what the deployment, and each of these starts, lacks; create nothing."""

    starts: tuple[StartRun, ...]


@dataclass(frozen=True)
class ShowHelp:
    """Show how to use the command."""


@dataclass(frozen=True)
class ShowRecipes:
    """List the catalogue."""


@dataclass(frozen=True)
class ListRuns:
    """List the newest runs."""


@dataclass(frozen=True)
class OfRun:
    """What is asked of a run."""

    run_id: RunId | None = None
    """None means the newest of the channel."""


class ShowStatus(OfRun):
    """Show one run."""


@dataclass(frozen=True)
class ShowLogs(OfRun):
    """Show the last log lines of a run's pods."""

    pod: str = ""
    """The pod, with or without the run's id before it; "" for all."""
    grep: str = ""
    """What the shown lines contain, in capitals or not; "" for all lines."""
    since_s: int = 0
    """How old the shown lines may be, in seconds; 0 for lines of any age."""


@dataclass(frozen=True)
class ShowAudit:
    """Show who did what in the channel."""

    about: str = ""
    """The run or cluster, by its id or how that begins; "" for all."""
    person: str = ""
    """The id or the name of the person; "" for all."""
    since_s: int = 0
    """How far back, in seconds; 0 for as far as it goes."""


@dataclass(frozen=True)
class _OfRuns:
    labels: tuple[str, ...]


class CompareRuns(_OfRuns):
    """Show what came of several runs side by side, and their curves in one picture."""


class DiffRuns(_OfRuns):
    """Show everything that differs between two runs."""


@dataclass(frozen=True)
class ShowCost:
    """Show what a month has cost in the channel."""

    person: str = ""
    """The id or the name of the person; "" for all."""
    month: str = ""
    """2026-11; "" for the current one."""


@dataclass(frozen=True)
class StopRun(OfRun):
    """Stop a run and tear it down."""

    is_now: bool = False
    """Whether nobody is asked first."""


@dataclass(frozen=True)
class StudyRuns:
    """Start several runs of one recipe, one after another on one cluster."""

    starts: tuple[StartRun, ...]
    cluster: CreateCluster | None = None
    """The cluster that is made for them and goes with the last; None: they name a kept one."""


@dataclass(frozen=True)
class SetBudget:
    """Give a run another budget."""

    label: str
    usd: float


@dataclass(frozen=True)
class ScaleRun:
    """Let a run on a range of nodes train on `nodes` of them."""

    label: str
    """The run, by its id or name."""
    nodes: int


@dataclass(frozen=True)
class CreateCluster:
    """Make a cluster that stays for `ttl_s` seconds, whether runs use it or not."""

    name: str
    spec: ClusterSpec
    ttl_s: int
    options: Options = field(default_factory=Options)
    """Its keys; those of a start alone are as if nothing was typed."""
    idle_s: int = 0
    """After how many seconds without a run its training nodes go; 0: they stay."""
    runs: dict[RunId, StartRun] = field(default_factory=dict)
    """Of the study that it is made for: they queue from the first, and it goes with the last."""


@dataclass(frozen=True)
class ListClusters:
    """List the kept clusters."""


@dataclass(frozen=True)
class _OfCluster:
    label: str
    """The name of a kept cluster, its id, or how its id begins."""


@dataclass(frozen=True)
class ShowCluster(_OfCluster):
    """Show one kept cluster, or its nodes as Kubernetes has them."""

    nodes: bool = False


@dataclass(frozen=True)
class ExtendCluster(_OfCluster):
    """Keep a cluster for `seconds` longer."""

    seconds: int


@dataclass(frozen=True)
class ResizeCluster(_OfCluster):
    """Give a cluster another number of training nodes."""

    nodes: int


@dataclass(frozen=True)
class DeleteCluster(_OfCluster):
    """Delete a cluster, whoever uses it."""

    is_now: bool = False


@dataclass(frozen=True)
class ValidateCluster(_OfCluster):
    """Run every check of a cluster, or the usual ones and nccl-tests."""

    measures_nccl: bool = False


ClusterCommand = (
    CreateCluster
    | ListClusters
    | ShowCluster
    | ExtendCluster
    | ResizeCluster
    | DeleteCluster
    | ValidateCluster
)
Look = (
    ShowHelp
    | ShowRecipes
    | ShowPlan
    | ShowPreflight
    | ListRuns
    | ShowStatus
    | ShowLogs
    | CompareRuns
    | DiffRuns
    | ShowCost
    | ShowAudit
)
"""Of runs and of what can be trained; it changes nothing."""
Command = Look | StartRun | StudyRuns | StopRun | SetBudget | ScaleRun | ClusterCommand
