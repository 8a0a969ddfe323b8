"""Records that saving has failed, and makes way for the next try."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.workflow import WorkflowFailed, parse_caught
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.jobs import save
from stationmaster.jobs.live_run import LiveRun
from stationmaster.saving_reactions import results_unsaved
from stationmaster.services import Services
from stationmaster.steps.parts.job_driver import remove
from stationmaster.steps.parts.records import change_phases

logger = logging.getLogger(__name__)


def leave_unsaved(services: Services, run_id: RunId, *, error: Mapping[str, str]) -> None:
    """Record why the run's results are not saved, and delete the Job that was to do it.

    The run stays in phase saving and keeps its lease, so its file system stays as well. Where
    saving failed before it began, the run ends as its job has.
    """
    run = services.runs.load(run_id)
    if not run.has_unsaved_results:
        return
    caught = parse_caught(error)
    why = caught.why if caught is not None else "unknown error"
    if run.phase is not RunPhase.SAVING:
        run = change_phases(services, run, decide(run, WorkflowFailed(why), POLICY))
    run = results_unsaved(services, run, reason=why)
    _delete_job(services, run)


def _delete_job(services: Services, run: Run) -> None:
    """Delete the Job, which cannot start again; a cluster that does not answer is left alone."""
    try:
        remove(LiveRun(services, run), save)
    except (TransientError, PermanentError) as exc:
        logger.warning("job not deleted", extra={"run_id": run.run_id, "error": str(exc)})
