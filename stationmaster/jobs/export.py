"""Makes a model of what another framework has saved: `python -m training.frameworks`.

It runs when training has ended well and before the result is saved: it writes `model` beside the
framework's checkpoints, as a part of the result. A failure is recorded and fails nothing: the
checkpoint itself is saved. With the training job's token of the Hugging Face hub it may fetch the
tokenizer.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ExportEnded, RunPhase
from stationmaster.inspection import Verdict
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.jobs.run_jobs import look_after_training, render_model_job
from stationmaster.rendering.environment import literal
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import RunRole
from stationmaster.rendering.run_job import one_cpu

NAME: Final = "export"
ROLE: Final[RunRole] = "exporting"
# 16 GB are read and written in minutes.
DEADLINE_S: Final = 2 * 3600


def applies(run: Run) -> bool:
    """Say whether a framework has trained the run well; not our own trainer, nor a command."""
    request = run.request
    is_framework = not request.uses_own_trainer and not request.program
    return is_framework and outcome_of(run) is RunPhase.SUCCEEDED


def render(live: LiveRun) -> list[KubernetesObject]:
    """Make the Job; the hub's token is in the cluster since the training job was submitted."""
    request, progress = live.run.request, live.run.progress
    trained_with = getattr(live.spec().recipe.training, "tokenizer", "")
    named = getattr(request.resolved.training, "tokenizer", "")
    tokenizer = literal(trained_with) if trained_with != named else ""
    words = [f"{key}={value}" for key, value in sorted(request.overrides.items())]
    job = render_model_job(
        live,
        NAME,
        ROLE,
        [
            *("python", "-m", "training.frameworks", request.recipe),
            *map(literal, words),
            *("--output-dir", f"{RUNS_DIRECTORY}/{live.run_id}"),
            *(("--tokenizer", tokenizer) if tokenizer else ()),
            *(("--loss", f"{progress.loss_nats:.6g}") if progress is not None else ()),
        ],
        {"STATIONMASTER_CACHE_DIR": "/tmp/stationmaster"},
        # A file of weights is in memory, 5 GB, with the libraries.
        resources=one_cpu("8Gi", most="16Gi"),
        deadline_s=DEADLINE_S,
    )
    return [job]


def look(live: LiveRun) -> Outcome:
    """Judge by the Job alone."""
    outcome = look_after_training(live, ROLE, since=live.run.saving_since)
    if outcome.verdict is Verdict.GOOD:
        return Outcome(Verdict.GOOD, event=failed(live, ""))
    return outcome


def failed(live: LiveRun, why: str) -> ExportEnded:
    """Record the reason; "" where it has not failed."""
    return ExportEnded(**live.stamp("results.export_ended"), reason=why)
