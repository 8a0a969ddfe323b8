"""Puts one rank's part of a run together: task, sharding, optimizer, checkpoints, watchdog.

`prepare_data` comes first and loads no torch, so that a missing data set is reported at once;
`build_trainer` follows when the ranks have joined. Only this module tells language models and image
classifiers apart.
"""

from __future__ import annotations

import hashlib
import platform
import threading
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stationmaster.domain import checkpoints
from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import steps_over
from stationmaster.domain.results import TRAINER_FACTS_FILE, TrainerFacts
from training.config import TrainerConfig, decisive, fingerprint
from training.data.image_lists import PreparedImages, prepare_images
from training.data.sources import PreparedData, Report, prepare_source
from training.files import write_whole
from training.repositories import RANDOM, SAMPLE, prepare_weights, published_directory

if TYPE_CHECKING:
    from training.checkpoint import Checkpointer
    from training.parallel import Ranks
    from training.progress import ProgressWriter
    from training.task import Task
    from training.trainer import Trainer
    from training.watchdog import Watchdog

Prepared = PreparedData | PreparedImages

_LIBRARIES: Final = ("torch", "transformers", "tokenizers", "torchao", "stationmaster")
_PACKAGES: Final = ("training", "stationmaster/domain")


def prepare_data(config: TrainerConfig, report: Report = lambda _: None) -> Prepared:
    """Bring the recipe's data and first weights to this machine; safe from many processes.

    Args:
        report: takes what is waited for, whenever that changes.

    Raises:
        UserError: the data set or the weights are missing, malformed, or do not fit the model.
    """
    if isinstance(config.recipe.model, ImageModel):
        report(f"the list of images in {config.recipe.own_training.dataset}")
        return prepare_images(config)
    weights = getattr(config.recipe.training, "weights", RANDOM)
    if weights not in (RANDOM, SAMPLE):
        report(f"weights {weights}")
    prepare_weights(config.recipe, cache_dir=config.cache_dir)
    return prepare_source(config, report)


def build_task(config: TrainerConfig, prepared: Prepared, ranks: Ranks) -> Task:
    """Build the model on the meta device and this rank's part of the data.

    Raises:
        UserError: the data set is too small for one step, or not what was packed; or a model of the
            hub is of a family that is not trained here as transformers computes it.
    """
    if isinstance(prepared, PreparedImages):
        from training.data.image_source import open_images
        from training.models.image import ImageTask

        images = open_images(prepared, config, rank=ranks.rank, world_size=ranks.world_size)
        return ImageTask(config.recipe, images, device=ranks.device)
    from training.agreement import from_rank_0, on_every_rank
    from training.data.sources import open_source, verify_source
    from training.models.language import LanguageTask
    from training.models.proof import prove

    on_every_rank(
        partial(verify_source, prepared, config, rank=ranks.rank, world_size=ranks.world_size),
        ranks,
    )
    # Ranks that split products or share sequences among them read the same samples.
    source = open_source(prepared, config, rank=ranks.data_rank, world_size=ranks.data_world_size)
    tried = partial(prove, config.recipe, source=source, ranks=ranks, cache_dir=config.cache_dir)
    from_rank_0(tried, ranks)
    return LanguageTask(config.recipe, source, ranks=ranks, cache_dir=config.cache_dir)


def build_trainer(
    config: TrainerConfig,
    *,
    prepared: Prepared,
    ranks: Ranks,
    progress: ProgressWriter,
    stop: threading.Event,
    watchdog: Watchdog,
) -> Trainer:
    """Build everything in its order: model, sharding, first weights, optimizer, checkpoints.

    Raises:
        UserError: the data do not suffice, or the weights do not fit the model.
        PermanentError: the nodes prepared different data.
    """
    import torch

    from training.agreement import check_same_data
    from training.build import write_facts
    from training.final_model import FinalModel
    from training.mesh import arranged
    from training.optimizer import build_optimizer
    from training.sharding import parallelise
    from training.trainer import Trainer

    recipe = config.recipe
    training = recipe.own_training
    ranks = arranged(ranks, training)
    # Dropout differs between ranks; first weights do not come from this generator.
    torch.manual_seed(training.seed + ranks.rank)
    task = build_task(config, prepared, ranks)
    check_same_data(task.source.identity, ranks)
    config = with_known_steps(config, task.source.samples_per_epoch)
    recipe, training = config.recipe, config.recipe.own_training
    parallel = parallelise(
        task.model,
        task.blocks,
        training=training,
        ranks=ranks,
        initialise=lambda: task.initialise(device=ranks.device),
    )
    if ranks.rank == 0:
        write_facts(config.output_dir, recipe=recipe, data_identity=task.source.identity)
    name = fingerprint(recipe, data_identity=task.source.identity)
    directory = config.output_dir / checkpoints.DIRECTORY / f"{recipe.directory_name}-{name}"
    checkpointer = _open_checkpoints(config, task, directory, prepared=prepared, ranks=ranks)
    return Trainer(
        config,
        ranks=ranks,
        progress=progress,
        stop=stop,
        task=task,
        parallel=parallel,
        optimizer=build_optimizer(task.model, training),
        checkpointer=checkpointer,
        final_model=FinalModel(
            config.output_dir, checkpoints=directory, recipe=recipe, ranks=ranks
        ),
        watchdog=watchdog,
    )


def with_known_steps(config: TrainerConfig, samples: int | None) -> TrainerConfig:
    """Return the configuration with the steps that its epochs are, of data with so many samples."""
    training = config.recipe.own_training
    if not training.epochs or samples is None:  # of a stream the recipe refuses epochs
        return config
    steps = steps_over(training, samples)
    most = {key: min(getattr(training, key), steps) for key in ("warmup_steps", "profile")}
    changed = training.model_copy(update={"steps": steps, **most})
    return replace(config, recipe=config.recipe.model_copy(update={"training": changed}))


def _open_checkpoints(
    config: TrainerConfig, task: Task, directory: Path, *, prepared: Prepared, ranks: Ranks
) -> Checkpointer:
    """Open the run's checkpoints, and leave beside them what describes its model."""
    from training.agreement import from_rank_0
    from training.checkpoint import Checkpointer
    from training.models.hub import describe_model
    from training.resume import take_over

    recipe = config.recipe
    configuration = decisive(recipe, data_identity=task.source.identity)
    if config.resume_from is not None:
        take_over(config.resume_from, directory=directory, configuration=configuration, ranks=ranks)
    checkpointer = Checkpointer(
        directory,
        ranks=ranks,
        kept=config.checkpoints_kept,
        configuration=configuration,
        rank_0_only=recipe.own_training.parallelism == "ddp",
    )
    # So that training.export can write the checkpoints' weights for the Hub without the recipe.
    described = partial(
        describe_model,
        directory,
        model=task.model,
        tokenizer=getattr(prepared, "tokenizer", None),
        ranks=ranks,
        published=published_directory(recipe, cache_dir=config.cache_dir),
    )
    from_rank_0(described, ranks)
    return checkpointer


def write_facts(output_dir: Path, *, recipe: Recipe, data_identity: str) -> None:
    """Write facts.json to the output directory, over that of an earlier start."""
    facts = TrainerFacts(
        versions=_versions(),
        seed=recipe.training.seed,
        data=f"{recipe.training.dataset} ({data_identity})",
    )
    output_dir.mkdir(parents=True, exist_ok=True)
    write_whole(output_dir / TRAINER_FACTS_FILE, facts.model_dump_json(indent=1) + "\n")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "code": code_hash()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue  # run from a checkout that is not installed
    return found


def code_hash(root: Path = Path(__file__).parents[1]) -> str:
    """Hash the sources of the trainer and of the domain: `sha256:` and 64 hex digits."""
    found = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(f"{path.relative_to(root).as_posix()}\0".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256:{found.hexdigest()}"
