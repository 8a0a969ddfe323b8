"""What the manifest of a result says of its run, and the Job that is told so when it begins."""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster import __version__
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.results import RunFacts
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.goodput import goodput
from stationmaster.domain.run.view import RunView
from stationmaster.jobs.live_run import LiveRun
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering.frameworks import framework_program
from stationmaster.rendering.job_spec import KubernetesObject, run_directory
from stationmaster.rendering.metadata import run_labels
from stationmaster.rendering.saver_job import render_saving


def result_facts(live: LiveRun, *, outcome: RunPhase) -> RunFacts:
    """Return the facts of the run in its current state; `outcome` is `running` for a backup."""
    run, services = live.run, live.services
    request, cluster = run.request, services.cluster_states.load(live.cluster_id)
    recipe = get_recipe(request.recipe, request.model).with_overrides(request.overrides)
    progress, now = run.progress, services.now()
    view = RunView(run, cluster)
    found = goodput(view, now)
    trained = (request.model.repository if request.model is not None else "") or request.recipe
    # What a command of people's own has trained, nobody has said. A framework's checkpoints are
    # saved as what a command has written, and beside them the model that was made of them.
    return RunFacts(
        run_id=run.run_id,
        recipe=request.recipe,
        overrides=request.overrides,
        model="" if request.program else trained,
        nodes=run.placement.nodes,
        instance_type=run.placement.instance_type,
        image=_with_digest(
            request.image
            or services.settings.image_of(recipe.framework, on_gpus=request.needs_cuda),
            live.kubernetes.pods(labels=run_labels(run.run_id, "training")),
        ),
        pods=tuple(sorted(run.pods)),
        program=request.program or framework_program(recipe, run_directory(run.run_id)),
        versions={"stationmaster": __version__},
        seed=None if request.program else recipe.training.seed,
        data=_data(run, request.dataset),
        outcome=outcome.value,
        step=progress.step if progress is not None else None,
        loss_nats=progress.loss_nats if progress is not None else None,
        best_step=run.best_step,
        cost_usd=round(view.cost_usd(now), 6),
        cluster_cost_usd=round(cluster.cost_usd(now), 6),
        goodput=found and round(found.fraction, 4),
        attempts=run.attempt_number,
        recoveries=tuple(run.recoveries),
        setbacks=run.setbacks,
        detections=tuple(run.detections),
        sizes=tuple(run.sizes),
    )


def render_result(
    live: LiveRun, *, outcome: RunPhase, backup_number: int | None = None
) -> list[KubernetesObject]:
    """Make the Job that brings a result, or a backup, with these facts, account and rights."""
    settings = live.services.settings
    return render_saving(
        result_facts(live, outcome=outcome),
        cluster_id=live.cluster_id,
        image=settings.relay_image,
        bucket=settings.artifacts_bucket,
        region=settings.region,
        backup_number=backup_number,
    )


def _data(run: Run, dataset: str) -> str:
    """Say what it was trained on, with the id of what was brought for it."""
    name = run.staging.root.partition("/")[0] if run.staging is not None else ""
    return f"{dataset}#{name}" if name else dataset


def _with_digest(image: str, pods: Iterable[PodView]) -> str:
    """Return the image as the training pods have it; a tag may be moved, and pods may be gone."""
    digest = next((pod.image_digest for pod in pods if pod.image_digest), "")
    return f"{image}@{digest}" if digest and "@" not in image else image
