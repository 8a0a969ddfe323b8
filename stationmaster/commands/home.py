"""What a person's Home shows: what is theirs, what waits for them, and what runs in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.commands.clusters import view_cluster
from stationmaster.commands.looking import view_run
from stationmaster.commands.permitting import has_role
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.errors import NotPossibleNow, UserError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.rules import Role
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.view import ClusterView, RunView
from stationmaster.services import Services

# How far back a person's runs that have ended are looked for, and how many are listed.
_LOOKED_BACK: Final = 50
MOST_ENDED: Final = 3
MOST_OPEN: Final = 10
"""Of each kind: Slack takes 100 blocks."""


@dataclass(frozen=True)
class Home:
    """Everything newest first, of the channels in which the person may look."""

    mine: list[RunView]
    """Those that have not ended, and a few that have."""
    waiting: list[Run]
    """Runs that wait for the approval of this person."""
    kept: list[ClusterView]
    """The kept clusters that the person has asked for."""
    num_runs: int
    """The open runs of the deployment, whoever has asked for them."""
    clusters: list[Cluster]
    """The clusters of the deployment that exist, whoever has asked for them."""


def show_home(services: Services, user_id: str) -> Home:
    """Return what a person's Home shows."""
    open_runs = services.runs.list_open()[::-1]
    clusters = services.cluster_states.list_open()[::-1]
    ended = [
        run
        for run in services.runs.list_recent(limit=_LOOKED_BACK)
        if run.request.user_id == user_id and not run.is_open
    ]
    found = {each.cluster_id: each for each in clusters}
    own = [run for run in open_runs if run.request.user_id == user_id][:MOST_OPEN]
    own = [
        run
        for run in own + ended[:MOST_ENDED]
        if _has_role(services, user_id, run.request.channel_id, Role.VIEWER)
    ]
    kept = [each for each in clusters if each.requester and each.requester.user_id == user_id]
    return Home(
        mine=[
            RunView(run, found[run.cluster_id])
            if run.cluster_id in found
            else view_run(services, run)
            for run in own
        ],
        waiting=[run for run in open_runs if _waits_for(services, run, user_id)],
        kept=[view_cluster(services, each) for each in kept[:MOST_OPEN]],
        num_runs=len(open_runs),
        clusters=clusters,
    )


def channel_of(services: Services, owner: str) -> str:
    """Return the channel in which a button of Home acts: that of its run or kept cluster.

    Raises:
        NotPossibleNow: there is none of that id any more.
    """
    run = services.runs.find(RunId(owner))
    cluster = services.cluster_states.find(ClusterId(owner)) if run is None else None
    asked = run.request if run is not None else cluster.requester if cluster is not None else None
    if asked is None:
        raise NotPossibleNow(f'there is no run or kept cluster "{owner[:60]}" any more')
    return asked.channel_id


def _waits_for(services: Services, run: Run, user_id: str) -> bool:
    asked = run.approval
    return (
        asked is not None
        and run.awaits_approval
        and not asked.by_iam
        and services.now() < asked.expires_at
        and user_id not in (run.request.user_id, *asked.given_by)
        and _has_role(services, user_id, run.request.channel_id, Role.APPROVER)
    )


def _has_role(services: Services, user_id: str, channel_id: str, role: Role) -> bool:
    """Say whether a person has a role; not where Slack does not say who is in a group."""
    try:
        return has_role(services, user_id, channel_id, role)
    except UserError:
        return False
