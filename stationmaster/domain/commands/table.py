"""The one table of what a person can type after `/train`: subcommands and keys, with their words.

The grammar, the help text, the suggestions of the local page, the Slack app's usage hint, the
reference in docs/commands.md and every "available: ..." sentence are drawn from these rows. A new
subcommand is a class and a row here, a function in `stationmaster.commands`, and a case in
`bot.listeners`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, get_args

from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.ids import RunId

APP_NAME: Final = "Stationmaster"
COMMAND: Final = "/train"


@dataclass(frozen=True)
class ShowPlan:
    """Show what starting would create and cost, and create nothing."""

    request: StartRun


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
class ShowStatus:
    """Show one run; None means the newest of the channel."""

    run_id: RunId | None = None


@dataclass(frozen=True)
class ShowLogs:
    """Show the last log lines of a run's pods."""

    run_id: RunId | None = None


@dataclass(frozen=True)
class StopRun:
    """Stop a run and tear it down."""

    run_id: RunId | None = None


Command = StartRun | ShowPlan | ShowHelp | ShowRecipes | ListRuns | ShowStatus | ShowLogs | StopRun


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


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """A subcommand that this version has."""

    name: str
    takes: Anything | Nothing | OptionalRun | Request
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
            help="stop a run and tear it down",
            example="stop",
            meanings=("cancel", "kill", "abort", "halt", "end", "quit"),
            changes=True,
        ),
    )
}

PLANNED: Final[Mapping[str, PlannedSubcommand]] = {
    row.name: row
    for row in (
        PlannedSubcommand(
            name="resume",
            today="a run resumes from its own checkpoints while it runs, and not after it has "
            "ended",
            meanings=("continue", "unpause"),
        ),
        PlannedSubcommand(
            name="scale",
            today="the number of nodes is fixed when a run starts",
            meanings=("resize", "grow", "shrink"),
        ),
        PlannedSubcommand(
            name="validate",
            today="every run checks its cluster before it trains",
            instead=("plan",),
        ),
        PlannedSubcommand(name="cluster", today="every run has a cluster of its own"),
        PlannedSubcommand(name="keep", today="a run's cluster is deleted when the run ends"),
        PlannedSubcommand(
            name="teardown",
            today="teardown starts when a run ends, and /train stop RUN ends one",
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
        PlannedSubcommand(
            name="preflight",
            today="/train plan RECIPE says what a run would create",
            instead=("plan",),
        ),
        PlannedSubcommand(name="study", today="one command starts one run"),
        PlannedSubcommand(name="audit", today="/train list shows the newest runs of the channel"),
    )
}

_MACHINE_KEYS: Final = (
    Key(name="nodes", help="how many instances", choices=("1", "2", "4")),
    Key(name="instance", help="EC2 instance type", choices=tuple(INSTANCES)),
    Key(name=PRESET, help="the same code small, on CPUs", choices=(SMOKE,)),
)

PLANNED_KEYS: Final[Mapping[str, PlannedKey]] = {
    row.name: row
    for row in (
        PlannedKey(name="on", today="every run has a cluster of its own"),
        PlannedKey(name="keep", today="a run's cluster is deleted when the run ends"),
        PlannedKey(name="cluster", today="every run has a cluster of its own"),
        PlannedKey(name="file_system", today="every run has a new file system of its own"),
        PlannedKey(name="capacity", today="nodes are on-demand instances"),
        PlannedKey(name="queue", today="a run starts at once"),
        PlannedKey(name="resume_from", today="a run resumes from its own checkpoints only"),
        PlannedKey(name="image", today="every run uses the image of the deployment"),
        PlannedKey(name="command", today="a run starts the trainer of its recipe"),
        PlannedKey(name="push_to", today="a run uploads nothing to a hub"),
        PlannedKey(
            name="backup_every",
            today="checkpoints are kept on the run's own file system, see checkpoint_every",
        ),
        PlannedKey(name="budget", today="the plan estimates the cost, and steps limits it"),
    )
}

# Words of the same meaning as a key, planned ones included, which other tools use.
KEY_MEANINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "nodes": ("num_nodes", "machines", "instances", "workers", "replicas"),
    "instance": ("instance_type", "machine", "machine_type"),
    "steps": ("max_steps", "num_steps", "iterations", "iters"),
    "learning_rate": ("lr",),
    "weight_decay": ("wd",),
    "sequence_length": ("seq_len", "seq_length", "context_length"),
    "grad_clip": ("max_grad_norm", "clip_grad_norm"),
    "schedule": ("scheduler", "lr_schedule"),
    "precision": ("dtype",),
    "cpu_offload": ("offload",),
    "checkpoint_every": ("save_every", "checkpoint_interval"),
    "resume_from": ("resume", "checkpoint", "restore", "from_checkpoint"),
    "capacity": ("spot", "capacity_type", "reservation"),
    "budget": ("max_cost", "cost_limit"),
    "image": ("container", "docker_image"),
    "command": ("cmd", "script", "entrypoint"),
    "file_system": ("fs", "fsx"),
}

AVAILABLE: Final = f"available: {', '.join(SUBCOMMANDS)}"
DESCRIPTION: Final = "Start, follow and stop training runs"
USAGE_HINT: Final = " | ".join(("RECIPE [nodes=N] [key=value ...]", *SUBCOMMANDS))


def keys_of(recipe: Recipe) -> list[Key]:
    """The keys that a recipe takes, in the order of help texts."""
    fields = type(recipe.training).model_fields
    return [
        *_MACHINE_KEYS,
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
