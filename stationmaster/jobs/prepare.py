"""Prepares a run's data: `python -m training.prepare`, in the training image.

A pod on each of the run's nodes: they divide the work among themselves. It needs no right in AWS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.datasets import (
    NO_VALIDATION,
    PackedSource,
    Preparation,
    S3Source,
    preparation_of,
)
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import StagingWork
from stationmaster.domain.run.staging import Staging
from stationmaster.jobs import stage
from stationmaster.jobs.bringing import (
    fail_with,
    look_for,
    node_program,
    render_work,
    staging_labels,
    staging_settings,
)
from stationmaster.jobs.live_run import LiveRun
from stationmaster.rendering.environment import literal
from stationmaster.rendering.job_spec import DATA_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import LABEL_HOSTNAME

NAME: Final = "prepare"
WORK: Final[StagingWork] = "preparing"

look = look_for(WORK)
failed = fail_with("the data could not be brought")


def applies(run: Run, staging: Staging | None) -> bool:
    """Say whether the run's data was copied and is to be prepared, or comes from the hub."""
    is_ready = staging is not None and staging.root
    is_made = isinstance(run.request.data, S3Source | PackedSource)
    return is_made and not is_ready and not stage.applies(run, staging)


def render(live: LiveRun) -> list[KubernetesObject]:
    """Make the Job, with the token with which it may fetch a tokenizer or a data set."""
    spec, staging = live.spec(), live.staging
    data_id, preparation = "", preparation_of(live.run.request.data_task, ())
    if staging and staging.data_id:
        data_id, preparation = staging.data_id, staging.preparation
    labels = staging_labels(live.run_id, WORK)
    apart = {"topologyKey": LABEL_HOSTNAME, "labelSelector": {"matchLabels": labels}}
    program = node_program(
        spec,
        [
            *("python", "-m", "training.prepare"),
            *_words(preparation, spec.recipe, data_id),
            *("--data-directory", DATA_DIRECTORY),
            *("--run-id", live.run_id),
        ],
        {"NVIDIA_VISIBLE_DEVICES": "void"},
        # Later runs find what is prepared by its name: it is always the deployment's work.
        image=live.services.settings.trainer_image(on_gpus=spec.num_gpus > 0),
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
    )
    return render_work(live, NAME, WORK, program, number=spec.nodes)


def _words(preparation: Preparation, recipe: Recipe, data_id: str) -> Sequence[str]:
    """Say what is prepared and how; without `data_id` it is a data set of the hub."""
    settings = staging_settings(recipe)
    if preparation is Preparation.IMAGES:
        rest = ["--no-validation"] if NO_VALIDATION in settings else []
        return ["images", data_id, "--classes", str(settings["num_classes"]), *rest]
    tokenizer, size = literal(str(settings["tokenizer"])), str(settings["vocab_size"])
    what = [data_id]
    if not data_id:
        assert isinstance(recipe.data, PackedSource), "other data is copied first"
        what = ["--dataset", recipe.data.name]
    return [preparation.value, *what, "--tokenizer", tokenizer, "--vocab-size", size]
