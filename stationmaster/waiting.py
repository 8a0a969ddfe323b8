"""Carries out what is decided of a workflow's waits: for its cluster, and for its job.

Called by commands and steps, after what they saw is recorded. The run is written before the token
is read, and `await_job` writes the token before it reads the run: one of the two always sees the
other, so no end of a job is missed.
"""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions import cluster as cluster_reactions
from stationmaster.domain.reactions.cluster import RunWaits
from stationmaster.domain.reactions.run import Reaction
from stationmaster.domain.reactions.workflow import Do, EndWait
from stationmaster.domain.run.aggregate import Wait
from stationmaster.services import Services


def settle_wait(services: Services, run_id: RunId, reactions: Iterable[Reaction]) -> None:
    """End the run's wait for its job, or keep it alive; an end comes first.

    Without a workflow that waits, or with one whose wait is over, nothing happens.
    """
    wanted = list(reactions)
    end = next((each for each in wanted if isinstance(each, EndWait)), None)
    if end is None and Do.PROLONG_WAIT not in wanted:
        return
    # An end that is an error ends whatever the run waits for; the rest is about its job only.
    ends_all = end is not None and end.error is not None
    for wait in (Wait.JOB, Wait.CLUSTER) if ends_all else (Wait.JOB,):
        token = services.runs.load_task_token(run_id, wait)
        if token is None:
            continue
        if end is None:
            services.workflows.heartbeat(token)
        else:
            _resolve(services, token, end)


def notify_waiting_runs(services: Services, cluster: Cluster) -> None:
    """End the wait of every run that leases the cluster or stands in its queue, where it is over.

    The phase is written before the tokens are read, and `acquire_cluster` writes its token before
    it reads the cluster. Notifying twice does no harm.
    """
    for run_id in cluster.waiting_runs:
        token = services.runs.load_task_token(run_id, Wait.CLUSTER)
        if token is not None:
            settle_cluster_wait(services, cluster, run_id, token)


def settle_cluster_wait(services: Services, cluster: Cluster, run_id: RunId, token: str) -> None:
    """End one run's wait for the cluster, if it is over."""
    for reaction in cluster_reactions.decide(cluster, RunWaits(run_id)):
        if isinstance(reaction, EndWait):
            _resolve(services, token, reaction)


def _resolve(services: Services, token: str, end: EndWait) -> None:
    if end.error is None:
        services.workflows.wait_succeeded(token)
    else:
        services.workflows.wait_failed(token, error=end.error.__name__, cause=end.sentence)
