"""The one table of the subcommands that a person can type after `/train`, with their words.

The grammar, the help text, the suggestions of the local page, the Slack app's usage hint, the
reference in docs/commands.md and every "available: ..." sentence are drawn from these rows. A new
subcommand is a class in `requests`, a row here, a function in `stationmaster.commands`, and a case
in `bot.listeners`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.ids import RunId

APP_NAME: Final = "Stationmaster"
COMMAND: Final = "/train"


@dataclass(frozen=True)
class Anything:
    """Whatever follows is not read."""

    make: Callable[[], Command]
    usage: str = ""


@dataclass(frozen=True)
class Nothing:
    """Nothing may follow."""

    make: Callable[[], Command]
    usage: str = ""


@dataclass(frozen=True)
class OptionalRun:
    """The id of a run may follow; without one the command is about the newest of the channel."""

    make: Callable[[RunId | None], Command]
    usage: str = "[RUN]"


@dataclass(frozen=True)
class Request:
    """A recipe and its keys follow."""

    make: Callable[[StartRun], Command]
    usage: str = "RECIPE [nodes=N] [instance=TYPE] [key=value ...]"


@dataclass(frozen=True)
class Requests:
    """Any number of recipes follow, each with its keys; none is the deployment alone."""

    make: Callable[[tuple[StartRun, ...]], Command]
    usage: str = "[RECIPE [key=value ...] ...]"


@dataclass(frozen=True)
class Resumption:
    """A run that has ended and keys follow."""

    make: Callable[[StartRun], Command]
    usage: str = "RUN|last [steps=+N] [key=value ...]"


@dataclass(frozen=True)
class OneCluster:
    """The name of a kept cluster follows."""

    make: Callable[[str], Command]
    usage: str = "NAME"


@dataclass(frozen=True)
class NewCluster:
    """A new name and what the cluster is to be made of follow."""

    make: Callable[..., CreateCluster]
    usage: str = (
        "NAME [nodes=N] [instance=TYPE] [ttl=DURATION] [file_system=GIB|fs-...] [key=value ...]"
    )


@dataclass(frozen=True)
class LongerLife:
    """The name of a kept cluster follows, and for how long it is to stay beyond its end."""

    make: Callable[[str, int], Command]
    usage: str = "NAME [DURATION]"


@dataclass(frozen=True)
class OtherSize:
    """The name of a kept cluster follows, and how many nodes it is to have."""

    make: Callable[[str, int], Command]
    usage: str = "NAME nodes=N"


@dataclass(frozen=True)
class Group:
    """One word of several follows, each with its own arguments; by that word."""

    rows: Mapping[str, Subcommand]
    usage: str = ""


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """A subcommand that this version has."""

    name: str
    takes: (
        Anything
        | Nothing
        | OptionalRun
        | Request
        | Requests
        | Resumption
        | OneCluster
        | NewCluster
        | LongerLife
        | OtherSize
        | Group
    )
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
        return " ".join(filter(None, (COMMAND, self.name, self.takes.usage)))


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
    takes=Request(lambda start: start),
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
            takes=NewCluster(CreateCluster),
            help="make a cluster that stays for ttl (8h if not given), for runs with on=NAME",
            example="cluster create team-a nodes=2 ttl=4h",
            meanings=("new", "make", "add", "up", "start"),
            changes=True,
        ),
        Subcommand(
            name=f"{CLUSTER} list",
            takes=Nothing(ListClusters),
            help="the kept clusters of this channel",
            example="cluster list",
            meanings=("ls", "all"),
        ),
        Subcommand(
            name=f"{CLUSTER} show",
            takes=OneCluster(ShowCluster),
            help="who uses it, what it costs, when it goes, and how to reach it with kubectl",
            example="cluster show team-a",
            meanings=("status", "describe", "info", "get", "kubeconfig"),
        ),
        Subcommand(
            name=f"{CLUSTER} extend",
            takes=LongerLife(ExtendCluster),
            help="keep it longer (2h if not given), at most until 7d from now",
            example="cluster extend team-a 2h",
            meanings=("keep", "prolong", "renew"),
            changes=True,
        ),
        Subcommand(
            name=f"{CLUSTER} resize",
            takes=OtherSize(ResizeCluster),
            help="change how many training nodes it has; fewer only while no run uses it",
            example="cluster resize team-a nodes=4",
            meanings=("scale", "grow", "shrink"),
            changes=True,
        ),
        Subcommand(
            name=f"{CLUSTER} delete",
            takes=OneCluster(DeleteCluster),
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
            takes=Anything(ShowHelp),
            help="how to use the command",
            example="help",
            meanings=("?", "-h", "--help", "usage", "man", "commands"),
        ),
        Subcommand(
            name="recipes",
            takes=Nothing(ShowRecipes),
            help="what can be trained",
            example="recipes",
            meanings=("recipe", "models", "model", "catalogue", "catalog"),
        ),
        Subcommand(
            name="plan",
            takes=Request(ShowPlan),
            help="what a run would create and cost; creates nothing",
            example="plan llama2-7b nodes=2",
            meanings=("estimate", "dry-run", "dryrun", "simulate", "check"),
        ),
        Subcommand(
            name="preflight",
            takes=Requests(ShowPreflight),
            help="what the account lacks for these starts: quotas, images, buckets, secrets; "
            "creates nothing",
            example="preflight llama2-7b nodes=2",
            meanings=("doctor", "diagnose-account", "quota", "quotas"),
        ),
        Subcommand(
            name="list",
            takes=Nothing(ListRuns),
            help="the newest runs of this channel",
            example="list",
            meanings=("ls", "ps", "runs", "jobs", "history", "queue"),
        ),
        Subcommand(
            name="status",
            takes=OptionalRun(ShowStatus),
            help="one run; without a run id the newest",
            example="status",
            meanings=("stats", "state", "info", "show", "describe", "progress", "watch", "metrics"),
        ),
        Subcommand(
            name="logs",
            takes=OptionalRun(ShowLogs),
            help="the last log lines of each pod",
            example="logs",
            meanings=("log", "tail", "output", "print"),
        ),
        Subcommand(
            name="stop",
            takes=OptionalRun(StopRun),
            help="stop a run and tear it down; without RUN your own, where you have only one",
            example="stop",
            meanings=("cancel", "kill", "abort", "halt", "end", "quit"),
            changes=True,
        ),
        Subcommand(
            name="resume",
            takes=Resumption(lambda start: start),
            help="a new run that goes on from what a run has saved",
            example="resume last steps=+100",
            meanings=("continue", "unpause"),
            changes=True,
        ),
        Subcommand(
            name=CLUSTER,
            takes=Group(_CLUSTER_ROWS),
            help="clusters that stay for several runs",
            example="cluster list",
        ),
        Subcommand(
            name="validate",
            takes=OneCluster(ValidateCluster),
            help="run every check of a kept cluster",
            example="validate team-a",
            meanings=("verify", "recheck"),
            changes=True,
        ),
    )
}

# Each subcommand as it is typed, those of a group in its place.
TYPED_SUBCOMMANDS: Final[tuple[Subcommand, ...]] = tuple(
    each
    for row in SUBCOMMANDS.values()
    for each in (row.takes.rows.values() if isinstance(row.takes, Group) else (row,))
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
