"""What a person uses of the results of runs that have ended, in a new command."""

from __future__ import annotations

from stationmaster.commands.runs import find_run
from stationmaster.domain.commands.resuming import NEWEST, SavedRun
from stationmaster.domain.errors import (
    NotPossibleNow,
    PermanentError,
    ResultMissing,
    RunNotFound,
)
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services


def find_saved_run(services: Services, label: str, *, channel_id: str) -> SavedRun:
    """A run of the channel that has ended, with the manifest of its result.

    Args:
        label: a run's id, or `last` for the newest that has ended.

    Raises:
        RunNotFound: no such run in this channel.
        NotPossibleNow: it has not ended, has saved nothing, or its manifest cannot be read.
    """
    if not services.settings.artifacts_bucket:
        raise NotPossibleNow("this deployment keeps no results: it has no artifacts bucket")
    run = _find(services, label, channel_id=channel_id)
    if not run.phase.is_terminal:
        raise NotPossibleNow(
            f"run {run.run_id} is {run.phase.value}; its result can be used when it has ended"
        )
    try:
        result = services.quick_artifacts.read(run.run_id)
    except ResultMissing as exc:
        why = f" ({run.unsaved_reason})" if run.unsaved_reason else ""
        raise NotPossibleNow(f"run {run.run_id} has saved nothing{why}") from exc
    except PermanentError as exc:
        raise NotPossibleNow(f"the result of run {run.run_id} cannot be used: {exc}") from exc
    return SavedRun(run.run_id, run.request, run.placement, result.manifest)


def _find(services: Services, label: str, *, channel_id: str) -> Run:
    if label != NEWEST:
        return find_run(services, RunId(label), channel_id=channel_id)
    for run in services.runs.list_recent(limit=50, channel_id=channel_id):
        if run.phase.is_terminal:
            return run
    raise RunNotFound("no run of this channel has ended yet; start one with /train RECIPE")
