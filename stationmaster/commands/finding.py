"""Which kept cluster or run a person means, and whether they may use or stop it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.aws.delivery_store import of_cluster, of_run
from stationmaster.commands.looking import find_run
from stationmaster.commands.permitting import Actor, check_role
from stationmaster.domain import rules
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.commands.cluster_words import NEWEST
from stationmaster.domain.errors import ClusterNotFound, NotPossibleNow, RunNotFound
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.teams import is_direct
from stationmaster.services import Services

# Fewer characters are no beginning of an id, but a guess.
_LEAST_BEGINNING: Final = 4
# Among how many of the newest runs the one of a thread is looked for.
_MOST_IN_THREADS: Final = 100
# How far back a run is looked for that has not ended.
_MOST_SEARCHED: Final = 50


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


@dataclass(frozen=True)
class StopChoice:
    """The runs of a channel that may be meant, the newest first."""

    runs: tuple[Run, ...]
    why: str = ""
    """Why it is not clear which one is meant; "" where it is."""


def stop_choice(services: Services, who: Actor, run_id: RunId | None) -> StopChoice:
    """Return the run that is named or the person's own active ones; everybody's if they have none.

    Raises:
        RunNotFound, NotPossibleNow: no run is active, or this one cannot be stopped.
        NotPermitted: the run is another's.
    """
    if run_id is not None:
        run = find_run(services, run_id, channel_id=who.channel_id)
        check_role(services, who, rules.STOP, about=run.run_id, owner=run.request.user_id)
        refuse_late_stop(run)
        return StopChoice((run,))
    newest = services.runs.list_recent(limit=_MOST_SEARCHED, channel_id=who.channel_id)
    active = tuple(run for run in newest if not run.phase.is_terminal)
    if not active:
        raise RunNotFound("no run is active in this channel; start one with /train RECIPE")
    own = tuple(run for run in active if run.request.user_id == who.user_id)
    if not own:
        return StopChoice(active, "no active run of this channel is yours")
    return StopChoice(own, f"you have {len(own)} active runs" if len(own) > 1 else "")


def refuse_late_stop(run: Run) -> None:
    """Refuse to stop what has ended, but for the push of its model to the hub.

    Raises:
        NotPossibleNow: saying how it has ended.
    """
    if run.phase.is_terminal:
        raise NotPossibleNow(f"run {run.run_id} has ended already: {run.phase.value}")
    if run.phase is not RunPhase.SAVING or run.has_unpushed_model:
        return
    ended = {
        RunPhase.FAILED: f"has failed ({run.reason})",
        RunPhase.STOPPED: f"is {run.reason}",
    }.get(outcome_of(run), "has trained to its end")
    raise NotPossibleNow(
        f"run {run.run_id} {ended}: its training processes have been ended, and its results are "
        "being saved; its nodes are free once they are"
    )
