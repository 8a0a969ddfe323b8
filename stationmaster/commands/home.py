"""What a person's Home shows: what is theirs, what waits for them, and what runs in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.commands.approving import find_asking
from stationmaster.commands.clusters import view_cluster
from stationmaster.commands.looking import view_run
from stationmaster.commands.permitting import Actor, acting, has_role
from stationmaster.domain import rules
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.errors import BadCommand, NotPossibleNow, UserError
from stationmaster.domain.notices import Notices
from stationmaster.domain.rules import Role
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import ClusterView, RunView, asker_of
from stationmaster.domain.run.view import channel_of as asked_in
from stationmaster.services import Services
from stationmaster.spending import Bill, month_budgets, month_of

# How far back a person's runs that have ended are looked for, and how many are listed.
_LOOKED_BACK: Final = 50
MOST_ENDED: Final = 3
MOST_OPEN: Final = 10
"""Of each kind: Slack takes 100 blocks."""
BUDGETS_USD: Final = (0, *(each * 10**zeros for zeros in range(1, 6) for each in (1, 2, 5)))
"""Of a channel's month, in Home; settings take any number."""


@dataclass(frozen=True)
class Home:
    """Everything newest first, of the person's channels: where something is theirs, or waits for
    them, and they may look. A channel that only others use may be a private one.
    """

    user_id: str
    notices: Notices
    mine: list[RunView]
    """Those that have not ended, and a few that have."""
    waiting: list[Run | Cluster]
    """What waits for the approval of this person."""
    queue: list[RunView]
    """Runs that wait for nodes or for an approval, the oldest first."""
    others: list[RunView]
    """Open runs of other people that wait for nothing."""
    kept: list[ClusterView]
    num_runs: int
    """The open runs of the deployment, in whatever channel."""
    clusters: list[Cluster]
    """The clusters of the deployment that exist."""
    month: Bill
    """What the person's channels have cost in this month."""
    budgets: dict[str, float]
    """What each of these channels may spend in a month; 0: no end."""
    administered: list[str]
    """Those of which the person sets the budget."""


def show_home(services: Services, user_id: str) -> Home:
    """Return what a person's Home shows."""
    open_runs = services.runs.list_open()[::-1]
    clusters = services.cluster_states.list_open()[::-1]
    found = {each.cluster_id: each for each in clusters}
    kept = {each.cluster_id: each.requester for each in clusters if each.requester is not None}
    own = [run for run in open_runs if run.request.user_id == user_id]
    recent = services.runs.list_recent(limit=_LOOKED_BACK)
    ended = [run for run in recent if run.request.user_id == user_id and not run.is_open]
    asking: list[Run | Cluster] = [*open_runs, *clusters]
    waiting = [each for each in asking if _waits_for(services, each, user_id)]
    used = {run.request.channel_id for run in (*own, *ended)} | {*map(asked_in, waiting)}
    used |= {asked.channel_id for asked in kept.values() if asked.user_id == user_id}
    channels = {each for each in used if _has_role(services, user_id, each, Role.VIEWER)}

    def views(runs: list[Run], most: int) -> list[RunView]:
        here = [run for run in runs if run.request.channel_id in channels][:most]
        return [
            RunView(run, found[run.cluster_id])
            if run.cluster_id in found
            else view_run(services, run)
            for run in here
        ]

    queue = [run for run in open_runs if run.phase is RunPhase.QUEUED or run.awaits_approval]
    listed_above = {run.run_id for run in (*own, *queue)}
    others = [run for run in open_runs if run.run_id not in listed_above]
    listed = [each for each, asked in kept.items() if asked.channel_id in channels]
    return Home(
        user_id=user_id,
        notices=services.people.notices_of([user_id])[user_id],
        mine=views(own, MOST_OPEN) + views(ended, MOST_ENDED),
        waiting=waiting,
        queue=views(queue[::-1], MOST_OPEN),
        others=views(others, MOST_OPEN),
        kept=[view_cluster(services, found[each]) for each in listed[:MOST_OPEN]],
        num_runs=len(open_runs),
        clusters=clusters,
        month=month_of(services, "", channels=channels),
        budgets=month_budgets(services, channels),
        administered=sorted(
            each for each in channels if _has_role(services, user_id, each, Role.ADMIN)
        ),
    )


def set_budget(services: Services, who: Actor, usd: str) -> None:
    """Set what a channel may spend in a month; 0 for what its rules say. The lower of both counts.

    Raises:
        BadCommand, NotPermitted: it is no such number, or the person is no admin of the channel.
    """
    with acting(services, who, rules.SET_BUDGET, about=who.channel_id):
        if usd not in map(str, BUDGETS_USD):
            known = ", ".join(map(str, BUDGETS_USD))
            raise BadCommand(f'"{usd[:60]}" is no such budget; choose one of {known}')
        services.people.set_budget(who.channel_id, float(usd))


def set_notices(services: Services, who: Actor, notices: str) -> None:
    """Choose how one hears of what concerns one's runs; everybody may, for themselves alone.

    Raises:
        BadCommand: there is no such choice.
    """
    try:
        chosen = Notices(notices)
    except ValueError as exc:
        known = ", ".join(Notices)
        raise BadCommand(f'"{notices[:60]}" is no such choice; choose one of {known}') from exc
    services.people.choose(who.user_id, chosen)


def channel_of(services: Services, owner: str) -> str:
    """Return the channel in which a button of Home acts: that of its run or kept cluster.

    Raises:
        NotPossibleNow: there is none of that id any more.
    """
    found = find_asking(services, owner)
    if found is None or not (channel_id := asked_in(found)):
        raise NotPossibleNow(f'there is no run or kept cluster "{owner[:60]}" any more')
    return channel_id


def _waits_for(services: Services, subject: Run | Cluster, user_id: str) -> bool:
    asked = subject.open_approval
    return (
        asked is not None
        and not asked.by_iam
        and services.now() < asked.expires_at
        and user_id not in (asker_of(subject), *asked.given_by)
        and _has_role(services, user_id, asked_in(subject), Role.APPROVER)
    )


def _has_role(services: Services, user_id: str, channel_id: str, role: Role) -> bool:
    """Say whether a person has a role; not where Slack does not say who is in a group."""
    try:
        return has_role(services, user_id, channel_id, role)
    except UserError:
        return False
