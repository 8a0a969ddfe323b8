"""Brings what a run needs to the file system of its cluster, before the job that reads it starts.

There are three Jobs at most, one after the other: one brings back other runs' results, one copies
data, one prepares it. The first two find what is there already. One Job looks at data that the run
reads in place, or that FSx shows where the plan links it. What cannot be linked is copied. A run
whose pods read or make their data, and that starts anew, skips all of this.
"""

from __future__ import annotations

from stationmaster.domain.ids import RunId
from stationmaster.domain.run.events import RunPhase
from stationmaster.inspection import Verdict
from stationmaster.jobs import link, next_staging
from stationmaster.jobs.live_run import LiveRun
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.admission import refuse_missing
from stationmaster.steps.parts.data_link import ensure_link
from stationmaster.steps.parts.job_driver import carry_out
from stationmaster.steps.parts.leased_nodes import place_attempt
from stationmaster.steps.parts.records import enter_phase
from stationmaster.steps.parts.results_access import ensure_access
from stationmaster.steps.parts.stops import raise_if_stopped


def stage_data(services: Services, run_id: RunId) -> StepResult:
    """Look once at what brings the run's data, and start it; ready when the data is there.

    Raises:
        DataNotStaged: it cannot be brought; has the program's own sentence.
        JobNotStarted: the cluster lacks what the job is to be run with.
        TransientError: the file system is not there.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    live = LiveRun(services, place_attempt(services, run))
    job = next_staging(live)
    if job is None:
        return READY
    if live.run.entered(RunPhase.STAGING) is None:
        # Before hours are spent on data that the job would not be started with.
        refuse_missing(live.kubernetes, live.run)
    live = LiveRun(services, enter_phase(services, live.run, RunPhase.STAGING))
    if job is link:
        linked = ensure_link(services, live.run, live.cluster_id)
        if linked.verdict is Verdict.BAD:
            live.record(link.failed(live, linked.why))
        if linked.verdict is not Verdict.GOOD:
            return NOT_READY
    live, _ = carry_out(live, job, access=ensure_access)
    return READY if next_staging(live) is None else NOT_READY
