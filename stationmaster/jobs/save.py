"""Brings what a run leaves from its file system to the artifacts bucket.

The Job runs `python -m stationmaster.relay.save` on the system nodes: training nodes may be gone
already.
"""

from __future__ import annotations

from typing import Final, NoReturn

from stationmaster.domain.errors import SavingFailed
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.inspection import Verdict
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.jobs.result_facts import render_result
from stationmaster.jobs.run_jobs import look_at_jobs
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import RunRole, run_labels
from stationmaster.rendering.saver_job import SAVE

NAME: Final = SAVE
ROLE: Final[RunRole] = "saving"


def render(live: LiveRun) -> list[KubernetesObject]:
    """Make the Job with its account, its rights, and what is known of the run now."""
    return render_result(live, outcome=outcome_of(live.run))


def look(live: LiveRun) -> Outcome:
    """Judge by the Job; `verify_results` looks from outside at what it has brought."""
    run, settings = live.run, live.services.settings
    outcome, _ = look_at_jobs(
        live,
        run_labels(run.run_id, ROLE),
        since=run.export.ended_at if run.export is not None else run.saving_since,
        # The end of the training pods may have been waited for before.
        limit_s=settings.release_job_timeout_s + settings.job_start_timeout_s,
    )
    if outcome.verdict is Verdict.MISSING:
        return Outcome(Verdict.MISSING, reaches=[run.run_id])
    return outcome


def failed(live: LiveRun, why: str) -> NoReturn:
    """End the workflow's try; there may be another."""
    raise SavingFailed(why)
