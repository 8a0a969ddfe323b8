"""The one table of the subcommands that a person can type after `/train`, with their words.

Help texts, suggestions, docs/commands.md and every "available: ..." sentence are drawn from it. A
new subcommand is a class in `requests`, a row here, a function in `stationmaster.commands`, and a
case in `bot.listeners`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from stationmaster.domain.commands.requests import (
    Command,
    CreateCluster,
    DeleteCluster,
    ExtendCluster,
    ListClusters,
    ListRuns,
    ResizeCluster,
    ShowCluster,
    ShowHelp,
    ShowLogs,
    ShowPlan,
    ShowPreflight,
    ShowRecipes,
    ShowStatus,
    StopRun,
    ValidateCluster,
)

APP_NAME: Final = "Stationmaster"
COMMAND: Final = "/train"


class Takes(Enum):
    """What may follow a subcommand, by how it is written."""

    ANYTHING = auto()
    """Whatever follows is not read."""
    NOTHING = auto()
    RUN = auto()
    """The id of a run; without one the command is about the newest of the channel."""
    START = auto()
    """A recipe and its keys."""
    STARTS = auto()
    """Any number of recipes, each with its keys; none is the deployment alone."""
    RESUMPTION = auto()
    """A run that has ended, and keys."""
    CLUSTER = auto()
    """The name of a kept cluster."""
    NEW_CLUSTER = auto()
    """A new name, and what the cluster is to be made of."""
    LONGER_LIFE = auto()
    """The name of a kept cluster, and for how long it is to stay beyond its end."""
    OTHER_SIZE = auto()
    """The name of a kept cluster, and how many nodes it is to have."""
    ROW = auto()
    """One word of several, each with what follows it."""


_USAGE: Final[Mapping[Takes, str]] = {
    Takes.RUN: "[RUN]",
    Takes.START: "RECIPE [nodes=N] [instance=TYPE] [key=value ...]",
    Takes.STARTS: "[RECIPE [key=value ...] ...]",
    Takes.RESUMPTION: "RUN|last [steps=+N] [key=value ...]",
    Takes.CLUSTER: "NAME",
    Takes.NEW_CLUSTER: "NAME [nodes=N] [instance=TYPE] [ttl=DURATION] [file_system=GIB|fs-...] "
    "[key=value ...]",
    Takes.LONGER_LIFE: "NAME [DURATION]",
    Takes.OTHER_SIZE: "NAME nodes=N",
}


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """A subcommand that this version has."""

    name: str
    takes: Takes
    make: Callable[..., Command] = ShowHelp
    """Makes the command of what follows."""
    rows: Mapping[str, Subcommand] = field(default_factory=dict)
    """Of a group, by the word that tells them apart."""
    help: str
    example: str
    meanings: tuple[str, ...] = ()
    """Words of the same meaning, which other tools use."""
    changes: bool = False
    """Whether it starts, changes or ends something; a mistyped word is taken for one that does
    not, where it could be either."""

    @property
    def typed(self) -> str:
        """How it is written, e.g. /train status [RUN]."""
        return " ".join(filter(None, (COMMAND, self.name, _USAGE.get(self.takes))))


@dataclass(frozen=True, kw_only=True)
class PlannedSubcommand:
    """A subcommand of a later version: refused with what this version does."""

    name: str
    today: str
    """What this version does, to follow "is not available in this version; "."""
    instead: tuple[str, ...] = ()
    """Subcommands that may take over the words typed after it; the first that they fit does."""
    meanings: tuple[str, ...] = ()


# A recipe in place of a subcommand starts a run.
START: Final = Subcommand(
    name="",
    takes=Takes.START,
    make=lambda start: start,
    help="start a run",
    example="tiny-llama nodes=2 steps=60",
    meanings=("run", "launch", "train", "submit", "begin"),
    changes=True,
)

CLUSTER: Final = "cluster"

_CLUSTER_ROWS: Final[Mapping[str, Subcommand]] = {
    row.name.removeprefix(f"{CLUSTER} "): row
    for row in (
        Subcommand(
            name=f"{CLUSTER} create",
            takes=Takes.NEW_CLUSTER,
            make=CreateCluster,
            help="make a cluster that stays for ttl (8h if not given), for runs with on=NAME",
            example="cluster create team-a nodes=2 ttl=4h",
            meanings=("new", "make", "add", "up", "start"),
            changes=True,
        ),
        Subcommand(
            name=f"{CLUSTER} list",
            takes=Takes.NOTHING,
            make=ListClusters,
            help="the kept clusters of this channel",
            example="cluster list",
            meanings=("ls", "all"),
        ),
        Subcommand(
            name=f"{CLUSTER} show",
            takes=Takes.CLUSTER,
            make=ShowCluster,
            help="who uses it, what it costs, when it goes, and how to reach it with kubectl",
            example="cluster show team-a",
            meanings=("status", "describe", "info", "get", "kubeconfig"),
        ),
        Subcommand(
            name=f"{CLUSTER} extend",
            takes=Takes.LONGER_LIFE,
            make=ExtendCluster,
            help="keep it longer (2h if not given), at most until 7d from now",
            example="cluster extend team-a 2h",
            meanings=("keep", "prolong", "renew"),
            changes=True,
        ),
        Subcommand(
            name=f"{CLUSTER} resize",
            takes=Takes.OTHER_SIZE,
            make=ResizeCluster,
            help="change how many training nodes it has; fewer only while no run uses it",
            example="cluster resize team-a nodes=4",
            meanings=("scale", "grow", "shrink"),
            changes=True,
        ),
        Subcommand(
            name=f"{CLUSTER} delete",
            takes=Takes.CLUSTER,
            make=DeleteCluster,
            help="delete it now; runs on it end",
            example="cluster delete team-a",
            meanings=("remove", "rm", "destroy", "teardown", "down", "stop"),
            changes=True,
        ),
    )
}

SUBCOMMANDS: Final[Mapping[str, Subcommand]] = {
    row.name: row
    for row in (
        Subcommand(
            name="help",
            takes=Takes.ANYTHING,
            make=ShowHelp,
            help="how to use the command",
            example="help",
            meanings=("?", "-h", "--help", "usage", "man", "commands"),
        ),
        Subcommand(
            name="recipes",
            takes=Takes.NOTHING,
            make=ShowRecipes,
            help="what can be trained",
            example="recipes",
            meanings=("recipe", "models", "model", "catalogue", "catalog"),
        ),
        Subcommand(
            name="plan",
            takes=Takes.START,
            make=ShowPlan,
            help="what a run would create and cost; creates nothing",
            example="plan llama2-7b nodes=2",
            meanings=("estimate", "dry-run", "dryrun", "simulate", "check"),
        ),
        Subcommand(
            name="preflight",
            takes=Takes.STARTS,
            make=ShowPreflight,
            help="what the account lacks for these starts: quotas, images, buckets, secrets; "
            "creates nothing",
            example="preflight llama2-7b nodes=2",
            meanings=("doctor", "diagnose-account", "quota", "quotas"),
        ),
        Subcommand(
            name="list",
            takes=Takes.NOTHING,
            make=ListRuns,
            help="the newest runs of this channel",
            example="list",
            meanings=("ls", "ps", "runs", "jobs", "history", "queue"),
        ),
        Subcommand(
            name="status",
            takes=Takes.RUN,
            make=ShowStatus,
            help="one run; without a run id the newest",
            example="status",
            meanings=("stats", "state", "info", "show", "describe", "progress", "watch", "metrics"),
        ),
        Subcommand(
            name="logs",
            takes=Takes.RUN,
            make=ShowLogs,
            help="the last log lines of each pod",
            example="logs",
            meanings=("log", "tail", "output", "print"),
        ),
        Subcommand(
            name="stop",
            takes=Takes.RUN,
            make=StopRun,
            help="stop a run and tear it down; without RUN your own, where you have only one",
            example="stop",
            meanings=("cancel", "kill", "abort", "halt", "end", "quit"),
            changes=True,
        ),
        Subcommand(
            name="resume",
            takes=Takes.RESUMPTION,
            make=lambda start: start,
            help="a new run that continues from what a run has saved",
            example="resume last steps=+100",
            meanings=("continue", "unpause"),
            changes=True,
        ),
        Subcommand(
            name=CLUSTER,
            takes=Takes.ROW,
            rows=_CLUSTER_ROWS,
            help="clusters that stay for several runs",
            example="cluster list",
        ),
        Subcommand(
            name="validate",
            takes=Takes.CLUSTER,
            make=ValidateCluster,
            help="run every check of a kept cluster",
            example="validate team-a",
            meanings=("verify", "recheck"),
            changes=True,
        ),
    )
}

# Each subcommand as it is typed, those of a group in its place.
TYPED_SUBCOMMANDS: Final[tuple[Subcommand, ...]] = tuple(
    each for row in SUBCOMMANDS.values() for each in (row.rows.values() or (row,))
)

PLANNED: Final[Mapping[str, PlannedSubcommand]] = {
    row.name: row
    for row in (
        PlannedSubcommand(
            name="scale",
            today="a run has the nodes that nodes=N or nodes=MIN:MAX gave it when it started; "
            "/train cluster resize changes those of a kept cluster",
            meanings=("resize", "grow", "shrink"),
        ),
        PlannedSubcommand(
            name="keep",
            today="keep=2h, typed with a start, keeps the run's cluster, and "
            "/train cluster extend NAME keeps it longer",
        ),
        PlannedSubcommand(
            name="teardown",
            today="teardown starts when a run ends, and /train stop RUN ends one; "
            "/train cluster delete NAME deletes a kept cluster",
            instead=("stop",),
            meanings=(
                "delete",
                "destroy",
                "remove",
                "rm",
                "clean",
                "cleanup",
                "terminate",
                "down",
            ),
        ),
        PlannedSubcommand(
            name="cost",
            today="/train plan RECIPE estimates what a run would cost, /train status what it has "
            "cost",
            instead=("plan", "status"),
            meanings=("price", "pricing", "costs", "bill", "billing"),
        ),
        PlannedSubcommand(name="compare", today="/train list shows the runs of the channel"),
        PlannedSubcommand(
            name="rerun",
            today="a run is started again by typing its command",
            meanings=("restart", "retry", "repeat"),
        ),
        PlannedSubcommand(name="diff", today="/train list shows the runs of the channel"),
        PlannedSubcommand(name="study", today="one command starts one run"),
        PlannedSubcommand(name="audit", today="/train list shows the newest runs of the channel"),
    )
}

AVAILABLE: Final = f"available: {', '.join(SUBCOMMANDS)}"
DESCRIPTION: Final = "Start, follow and stop training runs"
USAGE_HINT: Final = " | ".join(("RECIPE [nodes=N] [key=value ...]", *SUBCOMMANDS))
