"""The association that links a run's data to the file system of its own cluster; see `stage_data`.

It is made while the run brings its data, and not with the file system: which data a run needs is
the run's business, and where FSx cannot link it, the same state copies it instead.
"""

from __future__ import annotations

from stationmaster.domain.datasets import S3Source
from stationmaster.domain.errors import PermanentError, StepTimedOut, TransientError
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import LINKED_PATH, cluster_name
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.inspection import Verdict
from stationmaster.jobs.live_run import Outcome
from stationmaster.services import Services
from stationmaster.steps.parts.records import (
    check_provisioning,
    request_resource,
    requested_at,
    resource_created,
    resource_refused,
    resource_seen,
)


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
