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
from stationmaster.jobs.run_jobs import look_after_training
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import RunRole
from stationmaster.rendering.saver_job import SAVE

NAME: Final = SAVE
ROLE: Final[RunRole] = "saving"


def render(live: LiveRun) -> list[KubernetesObject]:
    """Make the Job with its account, its rights, and what is known of the run now."""
    return render_result(live, outcome=outcome_of(live.run))


def look(live: LiveRun) -> Outcome:
    """Judge by the Job; `verify_results` looks from outside at what it has brought."""
    run = live.run
    since = run.export.ended_at if run.export is not None else run.saving_since
    outcome = look_after_training(live, ROLE, since=since)
    if outcome.verdict is Verdict.MISSING:
        return Outcome(Verdict.MISSING, reaches=[run.run_id])
    return outcome


def failed(live: LiveRun, why: str) -> NoReturn:
    """End the workflow's try; there may be another."""
    raise SavingFailed(why)
