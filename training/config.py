"""What one start of the trainer was asked to do: arguments and environment, read once.

It must not import torch, so that a mistyped key or a missing data set is refused in a fraction of a
second, on every rank, before anything heavy is loaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stationmaster.domain.catalogue.continuing import NOT_DECISIVE, falls_to_its_end
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.models import PLANNED_ONLY
from stationmaster.domain.catalogue.recipes import FRAMEWORK_NAMES, PRESET, SMOKE, Recipe
from stationmaster.domain.catalogue.sharing import why_not_shared
from stationmaster.domain.catalogue.training_config import (
    ImageTraining,
    LanguageTraining,
    TrainingConfig,
    context_parallel_of,
    expert_parallel_of,
    tensor_parallel_of,
)
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.keys.names import refuse_mistyped_keys
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.trackers import EXPECTED, Tracker, read_tracker
from training.repositories import hub_model
from training.watchdog import (
    DEFAULT_FACTOR,
    DEFAULT_FLOOR_S,
    DEFAULT_SLOW_S,
    WatchdogLimits,
)

_OWN_RECIPES = [name for name, recipe in CATALOGUE.items() if recipe.uses_own_trainer]

# Keys that older checkpoints do not have, with the value that these were made with.
_ADDED_LATER = {"model.own_head_dim": "None", "document_mask": "False"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The place of this process in the job, from the variables that torchrun sets."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int = 1
    """The number of processes on this node."""
    elastic: bool
    """Whether it runs under torchrun: an agent restarts this process, which must not outlive it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """The checked arguments of one start of the trainer."""

    recipe: Recipe
    output_dir: Path
    cache_dir: Path
    run_id: str
    launch: Launch
    checkpoints_kept: int
    resume_from: Path | None = None
    """A checkpoint of another run, to start from where this one has none of its own yet."""
    num_samples: int = 0
    """How many texts a language model writes at the end."""
    stop_deadline_s: float
    """Within so many seconds after SIGTERM the process is gone, saved or not."""
    watchdog: WatchdogLimits
    tracker: Tracker | None
    """A further place for the figures of the progress lines."""


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> TrainerConfig:
    """Read the command line and the environment.

    Raises:
        UserError: an unknown recipe, key or value, in the words of the recipe catalogue.
        SystemExit: argparse's own, code 2, or 0 after --help.
    """
    arguments = _parser().parse_intermixed_args(argv)
    overrides: dict[str, str] = {}
    for text in arguments.overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadParameter(f'"{text}" is not a key=value pair; write e.g. steps=100')
        overrides[key] = value
    cache_dir = cache_dir_from(environ)
    model = hub_model(arguments.recipe, weights=overrides.get("weights"), cache_dir=cache_dir)
    recipe = get_recipe(arguments.recipe, model)
    if not recipe.uses_own_trainer:
        raise BadParameter(
            f"recipe {recipe.name} is trained by {FRAMEWORK_NAMES[recipe.framework]}, not by this "
            f"program; stationmaster render {recipe.name} prints the command of its pods"
        )
    refuse_mistyped_keys(recipe, overrides)
    recipe = recipe.with_overrides(overrides)
    launch = Launch(
        rank=int(environ.get("RANK", "0")),
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        world_size=int(environ.get("WORLD_SIZE", "1")),
        local_world_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
        elastic="TORCHELASTIC_RUN_ID" in environ,
    )
    _check_node(recipe, launch)
    return TrainerConfig(
        recipe=recipe,
        output_dir=arguments.output_dir,
        cache_dir=cache_dir,
        run_id=run_id_from(environ),
        launch=launch,
        checkpoints_kept=arguments.keep_checkpoints,
        resume_from=arguments.resume_from,
        num_samples=arguments.samples,
        stop_deadline_s=arguments.stop_deadline,
        watchdog=WatchdogLimits(
            factor=arguments.watchdog_factor,
            floor_s=arguments.watchdog_floor,
            slow_s=arguments.watchdog_slow,
        ),
        tracker=_tracker(arguments.track),
    )


def _tracker(text: str | None) -> Tracker | None:
    tracker = read_tracker(text) if text else None
    if text and tracker is None:
        raise BadParameter(f'--track "{text}" is not accepted: expected {EXPECTED}')
    return tracker


def _check_node(recipe: Recipe, launch: Launch) -> None:
    size, has = tensor_parallel_of(recipe.own_training), launch.local_world_size
    if has % size:
        raise BadParameter(
            f"tensor_parallel={size} splits each sample over processes of one node, and this one "
            f"runs {has}; start torchrun with --nproc-per-node {size} or a multiple of it"
        )
    parts, ranks = context_parallel_of(recipe.own_training), launch.world_size
    if ranks % (parts * size):
        beside = "" if size == 1 else f" and tensor_parallel={size}"
        raise BadParameter(
            f"context_parallel={parts}{beside} share each sequence over {parts * size} processes, "
            f"and all nodes together run {ranks}; start {parts * size} or a multiple of it"
        )
    shards = has if recipe.own_training.parallelism == "hybrid" else ranks
    experts = expert_parallel_of(recipe.own_training)
    if (why := why_not_shared(recipe.model, experts, shards=shards)) is not None:
        raise BadParameter(why)


def run_id_from(environ: Mapping[str, str]) -> str:
    """Return the run of this process: STATIONMASTER_RUN_ID, or "local" outside the product.

    Raises:
        BadParameter: it holds characters that cannot stand in a file name.
    """
    run_id = environ.get("STATIONMASTER_RUN_ID", "local")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", run_id):
        raise BadParameter(
            f'STATIONMASTER_RUN_ID="{run_id}" is not accepted: expected letters, digits and ._-'
        )
    return run_id


def decisive(recipe: Recipe, *, data_identity: str) -> dict[str, str]:
    """List everything that decides the weights after a given step, by name, as text.

    `steps` is in it where the learning rate falls towards the last step: a run that continues with
    another number of steps has other rates from the step it resumes at.
    """
    values = _named(recipe, data_identity=data_identity)
    if falls_to_its_end(recipe):
        values["steps"] = str(recipe.training.steps)
    return values


def fingerprint(recipe: Recipe, *, data_identity: str) -> str:
    """Name, in 12 hex digits, all that is `decisive` but `steps`.

    It is part of the name of the checkpoints' directory, so that other models, data or
    hyper-parameters never meet there. Who changes `steps` alone means the same run: its checkpoints
    are found, and refused by name where they do not fit, instead of a silent new start.
    """
    values = json.dumps(_named(recipe, data_identity=data_identity), sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest()[:12]


def _named(recipe: Recipe, *, data_identity: str) -> dict[str, str]:
    training = recipe.training.model_dump(mode="json", exclude=set(NOT_DECISIVE))
    values = {
        f"model.{name}": value
        for name, value in recipe.model.model_dump(mode="json").items()
        if name not in PLANNED_ONLY
    }
    values = {name: str(value) for name, value in (values | training).items()}
    for name, usual in _ADDED_LATER.items():
        if values.get(name) == usual:
            del values[name]
    return values | {"data": data_identity}


def cache_dir_from(environ: Mapping[str, str]) -> Path:
    configured = environ.get("STATIONMASTER_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "stationmaster"


def positive(text: str) -> int:
    """Parse an argument that is a whole number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0")
    return value


def _describe_keys(kind: type[TrainingConfig], *, leave_out: Collection[str]) -> str:
    return "\n".join(
        f"  {name:<26}{field.description}"
        for name, field in kind.model_fields.items()
        if name not in leave_out
    )


def _epilog() -> str:
    keys = _describe_keys(TrainingConfig, leave_out=())
    for title, kind in (("of language models", LanguageTraining), ("of images", ImageTraining)):
        keys += f"\n\nkeys {title}:\n" + _describe_keys(kind, leave_out=TrainingConfig.model_fields)
    return (
        f"keys of all recipes:\n  {PRESET:<26}{SMOKE}: the same code path, small, on CPUs\n"
        f"{keys}\n\n"
        "environment:\n"
        "  STATIONMASTER_RUN_ID     the run named in the progress lines (default: local)\n"
        "  STATIONMASTER_CACHE_DIR  prepared data sets (default: ~/.cache/stationmaster)\n\n"
        "exit codes:\n"
        "  0    all steps done, last checkpoint complete\n"
        "  1    failed; one sentence on stderr, a `failed` line on stdout\n"
        "  2    the command line is not understood\n"
        "  75   another worker of the job is gone; start again to continue\n"
        "  76   this rank stood still too long (stacks on stderr); start again to continue\n"
        "  143  SIGTERM; the step in progress was finished and saved (128 + 15)\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training",
        description="Train a recipe; one process, or many under torchrun.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "recipe", metavar="RECIPE", help=f"one of {', '.join(_OWN_RECIPES)}, or hf:ORG/MODEL"
    )
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="see keys below")
    parser.add_argument(
        "--output-dir", type=Path, required=True, help="checkpoints; shared by all nodes of the job"
    )
    parser.add_argument(
        "--keep-checkpoints",
        type=positive,
        default=2,
        metavar="N",
        help="complete checkpoints kept (default: %(default)s)",
    )
    parser.add_argument(
        "--resume-from",
        type=Path,
        metavar="DIR",
        help="start from this checkpoint of another run; it is moved to this run's own, and not "
        "asked for where there are some",
    )
    parser.add_argument(
        "--samples",
        type=int,
        choices=range(11),
        default=0,
        metavar="N",
        help="texts, up to 10, that a trained language model writes (default: %(default)s)",
    )
    parser.add_argument(
        "--stop-deadline",
        type=float,
        default=25.0,
        metavar="SECONDS",
        help="time between SIGTERM and the end of the process, saved or not; keep it below the "
        "pod's terminationGracePeriodSeconds (default: %(default)s)",
    )
    for name, default, unit, text in (
        (
            *("factor", DEFAULT_FACTOR, "N"),
            "end the process, with its stacks, when a step takes N times the median step; 0: never",
        ),
        ("floor", DEFAULT_FLOOR_S, "SECONDS", "no step is late before this"),
        (
            *("slow", DEFAULT_SLOW_S, "SECONDS"),
            "most time for the first step, a checkpoint or an evaluation",
        ),
    ):
        parser.add_argument(
            f"--watchdog-{name}",
            type=_not_negative,
            default=default,
            metavar=unit,
            help=f"{text} (default: %(default)s)",
        )
    parser.add_argument(
        "--track",
        metavar="WHERE",
        help=f"report the figures there as well: {EXPECTED} (WANDB_* and MLFLOW_* apply)",
    )
    return parser
