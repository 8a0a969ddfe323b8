"""Looks at data that FSx shows of a linked bucket: `stage` without copying.

The association is made before (`steps/stage_data.py`). What cannot be linked is copied.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.names import LINKED_PATH, SHARED_MOUNT
from stationmaster.domain.planning.arrival import samples_read
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import DataUnlinked, StagingWork
from stationmaster.domain.run.staging import Staging
from stationmaster.inspection import Verdict
from stationmaster.jobs import stage
from stationmaster.jobs.bringing import look_at_staging
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.rendering.job_spec import KubernetesObject

NAME: Final = "link"
WORK: Final[StagingWork] = "linking"


def applies(run: Run, staging: Staging | None) -> bool:
    """Say whether the run's plan links its data, unless that has failed."""
    is_given_up = staging is not None and staging.unlinked_reason
    return bool(run.request.link_reason) and stage.applies(run, staging) and not is_given_up


def render(live: LiveRun) -> list[KubernetesObject]:
    """Make the Job with its account."""
    linked, read = f"{SHARED_MOUNT}{LINKED_PATH}", samples_read(live.run.request.resolved)
    return stage.render_order(live, NAME, WORK, linked=linked, objects_read=read)


def look(live: LiveRun) -> Outcome:
    """Judge by whether it is what S3 lists."""
    outcome = look_at_staging(live, WORK)
    if outcome.verdict is Verdict.BAD:
        return Outcome(Verdict.BAD, f"the linked data cannot be used: {outcome.why}")
    return outcome


def failed(live: LiveRun, why: str) -> DataUnlinked:
    """Let the data be copied instead; what FSx has made goes with the file system."""
    stamp = live.stamp("data.unlinked", live.attempt.attempt_id)
    return DataUnlinked(**stamp, cluster_id=live.cluster_id, reason=why)
