"""Brings what a run needs to the file system of its cluster, before the job that reads it starts.

There are three Jobs at most, one after the other: one brings back other runs' results, one copies
data, one prepares it. The first two find what is there already. One Job looks at data that the run
reads in place, or that FSx shows where the plan links it. What cannot be linked is copied. A run
whose pods read or make their data, and that starts anew, skips all of this.
"""

from __future__ import annotations

from stationmaster.domain.datasets import S3Source
from stationmaster.domain.errors import PermanentError, StepTimedOut, TransientError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import LINKED_PATH, cluster_name
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.inspection import Verdict
from stationmaster.jobs import link, next_staging
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.admission import refuse_missing
from stationmaster.steps.parts.job_driver import carry_out
from stationmaster.steps.parts.records import (
    check_provisioning,
    enter_phase,
    place_attempt,
    request_resource,
    requested_at,
    resource_created,
    resource_refused,
    resource_seen,
)
from stationmaster.steps.parts.results_access import ensure_access
from stationmaster.steps.parts.stops import wanted_run


def stage_data(services: Services, run_id: RunId) -> StepResult:
    """Look once at what brings the run's data, and start it; ready when the data is there.

    Raises:
        DataNotStaged: it cannot be brought; has the program's own sentence.
        JobNotStarted: the cluster lacks what the job is to be run with.
        TransientError: the file system is not there.
        RunStopped: someone asked to stop.
    """
    run = wanted_run(services, run_id)
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


def ensure_link(services: Services, run: Run, cluster_id: ClusterId) -> Outcome:
    """Look once at the association, and request it if it is missing.

    Raises:
        TransientError: the file system is not there (any more).
        IllegalTransition: the cluster goes away.
    """
    source = run.request.resolved.data
    assert isinstance(source, S3Source), "only data of S3 is linked"
    cluster = services.cluster_states.load(cluster_id)
    name = cluster_name(cluster_id)
    found = services.data_links.describe(cluster_id)
    if found is None:
        file_system = services.file_systems.describe(cluster_id)
        if file_system is None:
            raise TransientError(f"cluster {cluster_id} has no file system of its own")
        cluster = request_resource(services, cluster, ResourceKind.DATA_LINK, name)
        try:
            services.data_links.ensure(
                cluster_id,
                file_system_id=file_system.file_system_id,
                path=LINKED_PATH,
                source=source.uri,
                run_id=run.run_id,
            )
        except PermanentError as exc:
            resource_refused(services, cluster, ResourceKind.DATA_LINK, name)
            return Outcome(Verdict.BAD, str(exc))
        return Outcome(Verdict.WAITING)
    cluster = resource_seen(services, cluster, ResourceKind.DATA_LINK, name)
    if found.has_failed:
        said = found.failure or found.lifecycle
        return Outcome(Verdict.BAD, f"FSx could not link {source.uri}: {said}")
    if found.lifecycle != "AVAILABLE":
        since = requested_at(cluster, ResourceKind.DATA_LINK, name)
        try:
            what = f"the link of {source.uri} is still {found.lifecycle}"
            check_provisioning(services, since, what)
        except StepTimedOut as exc:
            return Outcome(Verdict.BAD, str(exc))
        return Outcome(Verdict.WAITING)
    resource_created(
        services, cluster, ResourceKind.DATA_LINK, name, resource_id=found.association_id
    )
    return Outcome(Verdict.GOOD)
