"""The one table of what a person can type after `/train`: subcommands and keys, with their words.

The grammar, the help text, the suggestions of the local page, the Slack app's usage hint, the
reference in docs/commands.md and every "available: ..." sentence are drawn from these rows. A new
subcommand is a class in `requests`, a row here, a function in `stationmaster.commands`, and a case
in `bot.listeners`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, get_args

from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe
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
from stationmaster.domain.commands.storing import TYPES
from stationmaster.domain.commands.validating import LEVELS, VALIDATE
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.request import NCCL_LEVELS

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


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key=value that this version has."""

    name: str
    help: str
    choices: tuple[str, ...] = ()
    """Values worth offering; none where a number or a name is expected."""


@dataclass(frozen=True, kw_only=True)
class PlannedKey:
    """A key of a later version: refused with what this version does."""

    name: str
    today: str


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

_NODES: Final = Key(
    name="nodes",
    help="how many instances, or of a range such as 2:8 as many as there are",
    choices=("1", "2", "4"),
)
_INSTANCE: Final = Key(name="instance", help="EC2 instance type", choices=tuple(INSTANCES))
_MACHINE_KEYS: Final = (
    _NODES,
    _INSTANCE,
    Key(name=PRESET, help="the same code small, on CPUs", choices=(SMOKE,)),
)

_CLUSTER: Final = Key(
    name="cluster",
    help="an EKS cluster of others, eks:NAME, in which the run is a guest: nothing of it is made, "
    "changed or deleted; needs file_system=fs-...",
)
_CAPACITY: Final = Key(
    name="capacity",
    help="on-demand, spot, odcr:ID for the instances of an on-demand capacity reservation, or "
    "block:ID for those of a capacity block, which a run waits for and leaves in time; these "
    "two decide type and zone and stay as they are",
    choices=("on-demand", "spot"),
)
_FILE_SYSTEM: Final = Key(
    name="file_system",
    help="an FSx for Lustre file system that exists (fs-...), used and never deleted; or the GiB "
    "of a new one: 1200, or a multiple of 2400",
    choices=("1200", "2400", "4800"),
)
_FILE_SYSTEM_TYPE: Final = Key(
    name="file_system_type",
    help="of a new file system, its type with MB/s a TiB: scratch-200 is the cheapest and keeps no "
    "second copy, persistent-250 is usual with GPUs",
    choices=tuple(TYPES),
)

_VALIDATE: Final = Key(
    name=VALIDATE,
    help="which checks a new cluster has to pass: quick for the usual ones, full for every check, "
    "which takes minutes longer",
    choices=LEVELS,
)

# Where a run goes and how long its cluster stays; a start and a plan take them.
_CLUSTER_KEYS: Final = (
    _CAPACITY,
    Key(name="on", help="a kept cluster of this channel, by name or id; last means the newest"),
    Key(
        name="keep",
        help="for how long the cluster stays after the run, from 1s to 7d",
        choices=("30m", "2h", "8h"),
    ),
    _VALIDATE,
    _CLUSTER,
    _FILE_SYSTEM,
    _FILE_SYSTEM_TYPE,
)
# What a run takes of another one's result, and what is saved of its own.
_RESULT_KEYS: Final = (
    Key(
        name="resume_from",
        help="a run of this channel (RUN or RUN@STEP) whose saved checkpoint training goes on "
        "from; steps=+N means N more than it had",
    ),
    Key(
        name="backup_every",
        help="while it trains, the newest checkpoint goes to the artifacts bucket this often, from "
        "10m to 7d (6h if not given); never for not at all",
        choices=("1h", "6h", "never"),
    ),
    Key(
        name="push_to",
        help="a private repository of the Hugging Face hub, ORG/NAME, that gets the model of a run "
        "that succeeds",
    ),
)
# Code that the product does not bring: only where the deployment allows it.
_OWN_CODE_KEYS: Final = (
    Key(
        name="image",
        help="container image of the training pods, from a registry that the deployment allows",
    ),
    Key(
        name="command",
        help="what they run in place of the recipe's trainer, in quotes; see docs/training.md",
    ),
)
# How Kubernetes runs the job.
_JOB_KEYS: Final = (
    Key(
        name="queue",
        help="a queue of Kueue in the cluster of on= or cluster=: the job waits there, suspended, "
        "until Kueue admits it",
    ),
    Key(name="priority_class", help="a PriorityClass of that cluster, for the training pods"),
    Key(
        name="host_network",
        help="whether the training pods use the network of their nodes, which EFA does not need",
        choices=("true", "false"),
    ),
    Key(name="nccl_debug", help="how much NCCL writes into the logs", choices=NCCL_LEVELS),
)
CLUSTER_KEYS: Final = (
    Key(name="nodes", help="how many instances", choices=_NODES.choices),
    _INSTANCE,
    Key(
        name="ttl",
        help="for how long it stays from now on, from 1s to 7d",
        choices=("2h", "8h", "1d"),
    ),
    _CAPACITY,
    _CLUSTER,
    _FILE_SYSTEM,
    _FILE_SYSTEM_TYPE,
    Key(name="file_system_gib", help="the same as file_system=GIB"),
    _VALIDATE,
)
"""What `/train cluster create` takes; keys of the same name mean the same as with a start."""

PLANNED_KEYS: Final[Mapping[str, PlannedKey]] = {
    row.name: row
    for row in (
        PlannedKey(name="budget", today="the plan estimates the cost, and steps limits it"),
    )
}

# Words of the same meaning as a key, planned ones included, which other tools use.
KEY_MEANINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "nodes": ("num_nodes", "nnodes", "machines", "instances", "workers", "replicas"),
    "instance": ("instance_type", "machine", "machine_type"),
    "steps": ("max_steps", "num_steps", "iterations", "iters"),
    "learning_rate": ("lr",),
    "weight_decay": ("wd",),
    "tensor_parallel": ("tp", "tp_size", "tensor_model_parallel_size"),
    "context_parallel": ("cp", "cp_size", "context_parallel_size"),
    "expert_parallel": ("ep", "ep_size", "expert_model_parallel_size"),
    "sequence_length": ("seq_len", "seq_length", "context_length"),
    "grad_clip": ("max_grad_norm", "clip_grad_norm"),
    "schedule": ("scheduler", "lr_schedule"),
    "precision": ("dtype",),
    "cpu_offload": ("offload",),
    "checkpoint_every": ("save_every", "checkpoint_interval"),
    "resume_from": ("resume", "checkpoint", "restore", "from_checkpoint"),
    "backup_every": ("backup", "backups", "backup_interval"),
    "push_to": ("push", "upload_to", "hub_model_id", "push_to_hub"),
    "capacity": ("spot", "capacity_type", "reservation", "capacity_block"),
    "budget": ("max_cost", "cost_limit"),
    "image": ("container", "docker_image"),
    "command": ("cmd", "script", "entrypoint"),
    "file_system": ("fs", "fsx", "file_system_id", "file_system_gib", "storage"),
    "file_system_type": ("storage_type", "deployment_type", "fsx_type"),
    "on": ("on_cluster",),
    "cluster": ("eks", "eks_cluster", "eks_name"),
    "keep": ("keep_for", "keep_alive", "ttl"),
    "ttl": ("keep", "keep_for", "keep_alive", "lifetime"),
    "validate": ("validation", "checks"),
    "queue": ("queue_name", "local_queue", "kueue"),
    "priority_class": ("priorityclass", "priorityclassname", "priority_class_name", "priority"),
    "host_network": ("hostnetwork",),
}

AVAILABLE: Final = f"available: {', '.join(SUBCOMMANDS)}"
DESCRIPTION: Final = "Start, follow and stop training runs"
USAGE_HINT: Final = " | ".join(("RECIPE [nodes=N] [key=value ...]", *SUBCOMMANDS))


def keys_of(recipe: Recipe) -> list[Key]:
    """The keys that a recipe takes, in the order of help texts."""
    fields = type(recipe.training).model_fields
    return [
        *_MACHINE_KEYS,
        *_CLUSTER_KEYS,
        *_RESULT_KEYS,
        *_OWN_CODE_KEYS,
        *_JOB_KEYS,
        *(
            Key(name=name, help=field.description or "", choices=_choices(field.annotation))
            for name, field in fields.items()
        ),
    ]


def key_names(recipe: Recipe) -> tuple[str, ...]:
    """The names of `keys_of`."""
    return tuple(key.name for key in keys_of(recipe))


def _choices(annotation: object) -> tuple[str, ...]:
    if annotation is bool:
        return ("true", "false")
    values = get_args(annotation)
    return tuple(value for value in values if isinstance(value, str))
