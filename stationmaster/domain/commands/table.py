"""The one table of the subcommands that a person can type after `/train`, with their words.

Help texts, suggestions, docs/commands.md and every "available: ..." sentence are drawn from it. A
new subcommand is a class in `requests`, a row here, a function in `stationmaster.commands`, and a
case in `bot.listeners`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from stationmaster.domain.commands.requests import (
    Command,
    CompareRuns,
    CreateCluster,
    DeleteCluster,
    DiffRuns,
    ExtendCluster,
    ListClusters,
    ListRuns,
    ResizeCluster,
    ScaleRun,
    SetBudget,
    ShowAudit,
    ShowCluster,
    ShowCost,
    ShowHelp,
    ShowLogs,
    ShowPlan,
    ShowPreflight,
    ShowRecipes,
    ShowStatus,
    StopRun,
    StudyRuns,
    ValidateCluster,
)

APP_NAME: Final = "Stationmaster"
COMMAND: Final = "/train"
# commands: the slash command; chat:write and files:write: cards and loss curves in channels that
# the app was invited to; *:history: finding an own message again whose posting was not confirmed;
# app_mentions:read and im:history: commands in threads and in conversations with the app;
# im:write: direct messages to who wants them, or once a channel is lost; usergroups:read: who has
# the roles that rules of channels give to user groups.
BOT_SCOPES: Final = (
    "app_mentions:read",
    "commands",
    "chat:write",
    "files:write",
    "channels:history",
    "groups:history",
    "im:history",
    "mpim:history",
    "im:write",
    "usergroups:read",
)


class Takes(Enum):
    """What may follow a subcommand, by how it is written; a number where nothing is shown of it."""

    ANYTHING = 0
    """Whatever follows is not read."""
    NOTHING = 1
    ROW = 2
    """One word of several, each with what follows it."""
    RUN = "[RUN]"
    """Without one the command is about the newest of the channel."""
    LOGS = "[RUN] [POD] [grep=TEXT] [since=10m]"
    START = "RECIPE [nodes=N] [instance=TYPE] [key=value ...]"
    STARTS = "[RECIPE [key=value ...] ...]"
    """Any number of starts; none is the deployment alone."""
    RESUMPTION = "RUN|last [steps=+N] [key=value ...]"
    REPETITION = "RUN|last [key=value ...]"
    STUDY = "RECIPE key=A,B[,C ...] [on=CLUSTER] [key=value ...]"
    """Of two to six runs in all."""
    RUN_BUDGET = "RUN|last usd=N"
    RUN_SIZE = "RUN|last nodes=N"
    RUNS = "RUN RUN [RUN ...]"
    PAIR = "RUN RUN"
    COST = "[@PERSON] [YYYY-MM]"
    AUDIT = "[RUN] [@PERSON] [since=DURATION]"
    CLUSTER = "NAME"
    CLUSTER_VIEW = "NAME [nodes]"
    VALIDATION = "NAME [nccl]"
    NEW_CLUSTER = (
        "NAME [nodes=N] [instance=TYPE] [ttl=DURATION] [file_system=GIB|fs-...] [key=value ...]"
    )
    LONGER_LIFE = "NAME [DURATION]"
    OTHER_SIZE = "NAME nodes=N"


@dataclass(frozen=True)
class Subcommand:
    """A subcommand that this version has."""

    name: str
    takes: Takes
    make: Callable[..., Command]
    """Makes the command of what follows."""
    help: str
    meanings: tuple[str, ...] = ()
    """Words of the same meaning, which other tools use."""
    more: str = ""
    """In its example, what follows its name."""
    changes: bool = False
    """Whether it starts, changes or ends something; a mistyped word is taken for one that does
    not, where it could be either."""
    asks: bool = False
    """Whether it asks before it acts, unless `now` follows."""
    rows: Mapping[str, Subcommand] = field(default_factory=dict)
    """Of a group, by the word that tells them apart."""

    @property
    def example(self) -> str:
        """An example of it, as it is typed after /train."""
        return f"{self.name} {self.more}".strip()

    @property
    def typed(self) -> str:
        """How it is written, e.g. /train status [RUN]."""
        usage = self.takes.value if isinstance(self.takes.value, str) else ""
        return " ".join(filter(None, (COMMAND, self.name, usage, "[now]" * self.asks)))


# A recipe in place of a subcommand starts a run.
START: Final = Subcommand(
    "",
    Takes.START,
    lambda start: start,
    "start a run",
    ("run", "launch", "train", "submit", "begin"),
    more="tiny-llama nodes=2 steps=60",
    changes=True,
)

CLUSTER: Final = "cluster"

_CLUSTER_ROWS: Final[Mapping[str, Subcommand]] = {
    row.name.removeprefix(f"{CLUSTER} "): row
    for row in (
        Subcommand(
            f"{CLUSTER} create",
            Takes.NEW_CLUSTER,
            CreateCluster,
            "make a cluster that stays for ttl (8h if not given), for runs with on=NAME",
            ("new", "make", "add", "up", "start"),
            more="team-a nodes=2 ttl=4h",
            changes=True,
        ),
        Subcommand(
            f"{CLUSTER} list",
            Takes.NOTHING,
            ListClusters,
            "the kept clusters of this channel",
            ("ls", "all"),
        ),
        Subcommand(
            f"{CLUSTER} show",
            Takes.CLUSTER_VIEW,
            ShowCluster,
            "who uses it, its cost and end, and how to reach it with kubectl; or its nodes",
            ("status", "describe", "info", "get", "kubeconfig"),
            more="team-a",
        ),
        Subcommand(
            f"{CLUSTER} extend",
            Takes.LONGER_LIFE,
            ExtendCluster,
            "keep it longer (2h if not given), at most until 7d from now",
            ("keep", "prolong", "renew"),
            more="team-a 2h",
            changes=True,
        ),
        Subcommand(
            f"{CLUSTER} resize",
            Takes.OTHER_SIZE,
            ResizeCluster,
            "change how many training nodes it has; fewer only while no run uses it",
            ("scale", "grow", "shrink"),
            more="team-a nodes=4",
            changes=True,
        ),
        Subcommand(
            f"{CLUSTER} delete",
            Takes.CLUSTER,
            DeleteCluster,
            "ask, and delete it: runs on it end; with now it does not ask",
            ("remove", "rm", "destroy", "teardown", "down", "stop"),
            more="team-a",
            changes=True,
            asks=True,
        ),
    )
}

EXTEND: Final = _CLUSTER_ROWS["extend"]
"""What is meant without the word `cluster` as well."""

SUBCOMMANDS: Final[Mapping[str, Subcommand]] = {
    row.name: row
    for row in (
        Subcommand(
            "help",
            Takes.ANYTHING,
            ShowHelp,
            "how to use the command",
            ("?", "-h", "--help", "usage", "man", "commands"),
        ),
        Subcommand(
            "recipes",
            Takes.NOTHING,
            ShowRecipes,
            "what can be trained",
            ("recipe", "models", "model", "catalogue", "catalog"),
        ),
        Subcommand(
            "plan",
            Takes.START,
            ShowPlan,
            "what a run would create and cost; creates nothing",
            ("estimate", "dry-run", "dryrun", "simulate", "check"),
            more="llama2-7b nodes=2",
        ),
        Subcommand(
            "preflight",
            Takes.STARTS,
            ShowPreflight,
            "what the account lacks for these starts: quotas, images, buckets, secrets; "
            "creates nothing",
            ("doctor", "diagnose-account", "quota", "quotas"),
            more="llama2-7b nodes=2",
        ),
        Subcommand(
            "list",
            Takes.NOTHING,
            ListRuns,
            "the newest runs of this channel",
            ("ls", "ps", "runs", "jobs", "history", "queue", "squeue"),
        ),
        Subcommand(
            "status",
            Takes.RUN,
            ShowStatus,
            "one run, by its id or name; without one, or after last, the newest",
            ("stats", "state", "info", "show", "describe", "progress", "watch", "metrics"),
        ),
        Subcommand(
            "logs",
            Takes.LOGS,
            ShowLogs,
            "the last log lines of each pod, or of one; those with a text, or of the last minutes",
            ("log", "tail", "output", "print"),
        ),
        Subcommand(
            "stop",
            Takes.RUN,
            StopRun,
            "ask, and stop a run; without RUN your own, or a list; with now it does not ask",
            (
                *("cancel", "scancel", "kill", "abort", "halt", "end", "quit", "terminate"),
                *("teardown", "delete", "destroy", "remove", "rm", "clean", "cleanup", "down"),
            ),
            changes=True,
            asks=True,
        ),
        Subcommand(
            "resume",
            Takes.RESUMPTION,
            lambda start: start,
            "a new run that continues from what a run has saved",
            ("continue", "unpause"),
            more="last steps=+100",
            changes=True,
        ),
        Subcommand(
            "rerun",
            Takes.REPETITION,
            lambda start: start,
            "a new run of what a run was asked for, typed keys in place of its own",
            ("restart", "retry", "repeat", "clone", "copy", "duplicate"),
            more="last learning_rate=1e-4",
            changes=True,
        ),
        Subcommand(
            "study",
            Takes.STUDY,
            StudyRuns,
            "the values of a key one after another on one cluster: a run each, then a table",
            ("benchmark", "scaling", "sweep"),
            more="tiny-llama nodes=1,2,4 steps=50",
            changes=True,
        ),
        Subcommand(
            "budget",
            Takes.RUN_BUDGET,
            SetBudget,
            "another budget for a run that has not ended, in dollars for all of it",
            more="last usd=200",
            changes=True,
        ),
        Subcommand(
            "scale",
            Takes.RUN_SIZE,
            ScaleRun,
            "another number of nodes, within its range, for a run that trains",
            ("resize", "grow", "shrink"),
            more="last nodes=2",
            changes=True,
        ),
        Subcommand(
            "compare",
            Takes.RUNS,
            CompareRuns,
            "two to six runs side by side, and their loss as one picture",
            more="books-v1 books-v2",
        ),
        Subcommand(
            "diff",
            Takes.PAIR,
            DiffRuns,
            "what differs between two runs: keys, machines, image, code, versions, seed, data",
            more="books-v1 books-v2",
        ),
        Subcommand(
            "cost",
            Takes.COST,
            ShowCost,
            "what runs and kept clusters of this channel cost in a month, by person and recipe",
            ("price", "pricing", "costs", "bill", "billing"),
            more="2026-11",
        ),
        Subcommand(
            "audit",
            Takes.AUDIT,
            ShowAudit,
            "who did what in this channel, also what was refused",
            ("who", "trail"),
            more="since=7d",
        ),
        Subcommand(
            CLUSTER,
            Takes.ROW,
            ShowHelp,
            "clusters that stay for several runs",
            more="list",
            rows=_CLUSTER_ROWS,
        ),
        Subcommand(
            "validate",
            Takes.VALIDATION,
            ValidateCluster,
            "run every check of a kept cluster; with nccl the usual ones, and nccl-tests",
            ("verify", "recheck"),
            more="team-a",
            changes=True,
        ),
    )
}

# Each subcommand as it is typed, those of a group in its place.
TYPED_SUBCOMMANDS: Final[tuple[Subcommand, ...]] = tuple(
    each for row in SUBCOMMANDS.values() for each in (row.rows.values() or (row,))
)


@dataclass(frozen=True)
class ForeignWords:
    """Commands of other tools that nothing here does."""

    words: tuple[str, ...]
    instead: str
    """What to do, to follow "is not a command here; "."""
    like: str
    """The subcommand that is nearest to it."""
    is_program: bool = False
    """Whether the whole line can be a run's `command=`."""


FOREIGN: Final = (
    ForeignWords(
        ("sbatch", "srun", "salloc", "qsub", "bsub"),
        "start a recipe with /train RECIPE [key=value ...]; your own script is its "
        'command="torchrun ..."',
        "recipes",
    ),
    ForeignWords(
        ("torchrun", "python", "python3"),
        "your own script is the command= of a recipe, which says on what machines it runs",
        "recipes",
        is_program=True,
    ),
    ForeignWords(
        ("ssh", "exec", "attach", "shell", "kubectl"),
        "nobody logs in to the machines of a run; /train logs RUN shows what its pods print, and "
        "/train cluster show NAME how to reach a kept cluster with kubectl",
        "logs",
    ),
)

DESCRIPTION: Final = "Start, follow and stop training runs"
USAGE_HINT: Final = " | ".join(("RECIPE [nodes=N] [key=value ...]", *SUBCOMMANDS))
