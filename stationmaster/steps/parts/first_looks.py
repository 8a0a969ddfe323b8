"""The first look at the account, before a workflow makes anything.

What is lacking ends the workflow with its remedy; what may be lacking, or could not be asked, is
reported in the thread and stops nothing.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPreflightWarned
from stationmaster.domain.errors import PreflightFailed
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import PreflightWarned
from stationmaster.preflight import examine
from stationmaster.preflight.findings import lacking, uncertain
from stationmaster.preflight.subject import Subject, of_cluster, of_request
from stationmaster.services import Services

# Of the function's minute.
_DEADLINE_S: Final = 40.0


def look_before_run(services: Services, run: Run) -> Run:
    """Look at what a run without a cluster needs.

    Raises:
        PreflightFailed: something is lacking; nothing was made.
    """
    if run.attempt is not None:
        return run
    warned = _warnings(services, of_request(run.request))
    if not warned:
        return run
    event = PreflightWarned(**services.run_stamp(run.run_id, "preflight.warned"), findings=warned)
    return services.runs.record(run.run_id, [event])


def look_before_cluster(services: Services, cluster: Cluster) -> Cluster:
    """Look at what a cluster needs of which nothing is made; a run's own was looked at before.

    Raises:
        PreflightFailed: something is lacking; nothing was made.
    """
    if cluster.run_id is not None or cluster.resources:
        return cluster
    warned = _warnings(services, of_cluster(cluster.spec, name=cluster.label))
    if not warned:
        return cluster
    event = ClusterPreflightWarned(
        **services.cluster_stamp(cluster.cluster_id, "preflight.warned"), findings=warned
    )
    return services.cluster_states.record(cluster.cluster_id, [event])


def _warnings(services: Services, subject: Subject) -> tuple[str, ...]:
    found = examine(services, subject, account=services.account, deadline_s=_DEADLINE_S)
    missing = lacking(found)
    if missing:
        more = f" (and {len(missing) - 1} more: type /train preflight)" if len(missing) > 1 else ""
        raise PreflightFailed(
            f"nothing was made, because something is lacking: {missing[0].sentence}{more}"
        )
    return tuple(f"{each.check}: {each.sentence}" for each in uncertain(found))
