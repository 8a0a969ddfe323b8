"""Which kept cluster, or run of a thread, a person means, and whether it can be used."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.delivery_store import of_cluster, of_run
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.commands.cluster_words import NEWEST
from stationmaster.domain.errors import ClusterNotFound, NotPossibleNow
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.teams import is_direct
from stationmaster.services import Services

# Fewer characters are no beginning of an id, but a guess.
_LEAST_BEGINNING: Final = 4
# Among how many of the newest runs the one of a thread is looked for.
_MOST_IN_THREADS: Final = 100


def run_of_thread(services: Services, thread_ts: str, *, channel_id: str) -> RunId | None:
    """Return the run in whose card's thread something was typed; None where it is no run's."""
    # A card that has moved to a direct conversation is of a run of another channel.
    runs_of = None if is_direct(channel_id) else channel_id
    runs = services.runs.list_recent(limit=_MOST_IN_THREADS, channel_id=runs_of)
    owners = {of_run(run.run_id): run.run_id for run in runs}
    for owner, posted in services.deliveries.load_each(owners).items():
        if (posted.channel_id, posted.card_ts) == (channel_id, thread_ts):
            return owners[owner]
    return None


def find_usable_cluster(services: Services, label: str, *, channel_id: str) -> Cluster:
    """Return the kept cluster that a run may use.

    Raises:
        ClusterNotFound, NotPossibleNow: there is none, or it goes away.
    """
    cluster = find_cluster(services, label, channel_id=channel_id)
    refuse_ended(cluster)
    return cluster


def find_ready(services: Services, label: str, *, channel_id: str) -> Cluster:
    """Return the kept cluster, once it is ready.

    Raises:
        ClusterNotFound, NotPossibleNow: there is none, or it is not ready.
    """
    cluster = find_cluster(services, label, channel_id=channel_id)
    refuse_ended(cluster)
    refuse_unready(cluster)
    return cluster


def refuse_unready(cluster: Cluster) -> None:
    """Refuse a cluster that is not ready.

    Raises:
        NotPossibleNow: it is not.
    """
    if cluster.phase is not ClusterPhase.READY:
        raise NotPossibleNow(
            f"cluster {cluster.label} is {cluster.phase.value}; type it again once it is ready",
            suggestion=f"/train cluster show {cluster.label}",
        )


def find_cluster(services: Services, label: str, *, channel_id: str) -> Cluster:
    """Return a kept cluster of the channel, by its name, its id, or how its id begins.

    Raises:
        ClusterNotFound: none, or several ids begin so.
    """
    exact = services.cluster_states.find_named(label) or services.cluster_states.find(
        ClusterId(label)
    )
    if exact is not None and exact.is_kept and _is_of_channel(services, exact, channel_id):
        return exact
    kept = kept_clusters(services, channel_id=channel_id)
    if label == NEWEST and kept:
        return kept[0]
    begun = [each for each in kept if each.cluster_id.startswith(label)]
    if len(begun) == 1 and len(label) >= _LEAST_BEGINNING:
        return begun[0]
    if exact is not None and exact.requester is None and _has_run_in(services, exact, channel_id):
        raise ClusterNotFound(
            f"cluster {exact.cluster_id} goes with its run, and no other run can use it; "
            "keep=2h, typed with a start, keeps a run's cluster",
            suggestion="/train cluster list",
        )
    names = ", ".join(each.label for each in kept[:8])
    raise ClusterNotFound(
        f'no kept cluster is called "{label[:60]}" in this channel; '
        + (f"there is {names}" if kept else "there is none, /train cluster create NAME makes one"),
        suggestion="/train cluster list" if kept else None,
    )


def kept_clusters(services: Services, *, channel_id: str) -> list[Cluster]:
    """Return the kept clusters of a channel that exist, the newest first."""
    return [
        cluster
        for cluster in reversed(services.cluster_states.list_open())
        if cluster.is_kept and _is_of_channel(services, cluster, channel_id)
    ]


def _is_of_channel(services: Services, cluster: Cluster, channel_id: str) -> bool:
    requester = cluster.requester
    if requester is not None and requester.channel_id == channel_id:
        return True
    return services.deliveries.load(of_cluster(cluster.cluster_id)).channel_id == channel_id


def _has_run_in(services: Services, cluster: Cluster, channel_id: str) -> bool:
    run = services.runs.find(cluster.run_id) if cluster.run_id is not None else None
    return run is not None and run.request.channel_id == channel_id


def refuse_ended(cluster: Cluster) -> None:
    """Refuse a cluster on which nothing can begin any more.

    Raises:
        NotPossibleNow: it goes away, or has failed.
    """
    if cluster.is_going_away or cluster.phase is ClusterPhase.FAILED:
        raise NotPossibleNow(
            f"cluster {cluster.label} is {cluster.phase.value} and cannot be used any more",
            suggestion="/train cluster list",
        )
