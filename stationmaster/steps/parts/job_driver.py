"""Starts, times, waits for and removes the Jobs of a run: modules of `stationmaster/jobs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.inspection import Verdict
from stationmaster.jobs import AnyJob, RunJob
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.services import Services
from stationmaster.steps.parts.exit_from_existing import taken_out_when_late
from stationmaster.steps.parts.removal import remove_jobs_of

Access = Callable[[Services, Run, ClusterId, Sequence[RunId]], bool]
"""Lets pods reach results of runs; returns whether that is new, and valid in seconds only."""


def carry_out(
    live: LiveRun, job: AnyJob, *, access: Access | None = None
) -> tuple[LiveRun, Verdict]:
    """Look once at the Job, start it if it is missing, and record what is to be said of it.

    One whose pods reach results is started where that is settled; `access` sees to it.

    Raises:
        TransientError: the cluster or AWS does not answer.
        PermanentError: the cluster refuses the Job, or it has failed and the module says so.
    """
    outcome = job.look(live)
    if outcome.verdict is Verdict.MISSING:
        _start(live, job, outcome, access)
    event = job.failed(live, outcome.why) if outcome.verdict is Verdict.BAD else outcome.event
    return live.record(event), outcome.verdict


def settle(live: LiveRun, job: RunJob) -> LiveRun | None:
    """Carry out a Job whose failure is recorded and fails nothing; None until it is over.

    It is removed then: one that was given up must not begin later.

    Raises:
        TransientError: the cluster or AWS does not answer.
    """
    try:
        live, verdict = carry_out(live, job)
    except PermanentError as exc:
        live, verdict = live.record(job.failed(live, str(exc))), Verdict.BAD
    if verdict not in (Verdict.GOOD, Verdict.BAD):
        return None
    remove(live, job)
    return live


def remove(live: LiveRun, job: RunJob) -> None:
    """Delete the Job; where the cluster refuses that, the run's release is the last to try."""
    try:
        remove_jobs_of(live.kubernetes, live.run_id, job.ROLE)
    except PermanentError:
        return


def _start(live: LiveRun, job: AnyJob, outcome: Outcome, access: Access | None) -> None:
    """Apply what the Job needs.

    One that a step of an execution that was killed starts meanwhile will do: what it says of
    another moment is in its template, which cannot be changed.
    """
    services, cluster_id, reaches = live.services, live.cluster_id, outcome.reaches
    with taken_out_when_late(services, cluster_id):
        if reaches and access is not None and access(services, live.run, cluster_id, reaches):
            return
        try:
            live.kubernetes.apply(job.render(live))
        except PermanentError:
            if job.look(live).verdict is Verdict.MISSING:
                raise
