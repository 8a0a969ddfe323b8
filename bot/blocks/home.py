"""A person's Home: what waits for them, their runs and clusters, and what runs in all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from bot.actions import BUDGET_OF, ActionId, RunButton
from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.answers import run_line
from bot.blocks.approval import approval_blocks
from bot.blocks.card import run_buttons
from bot.blocks.cluster_answers import cluster_line
from bot.blocks.cluster_card import cluster_buttons
from bot.blocks.elements import (
    Block,
    Content,
    actions,
    button,
    choice,
    context,
    divider,
    fields,
    header,
    section,
)
from stationmaster.commands.home import BUDGETS_USD, MOST_OPEN, Home
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.table import APP_NAME, COMMAND
from stationmaster.domain.notices import Notices
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import ClusterView, RunView, asker_of, channel_of
from stationmaster.domain.sizes import counted

# With two blocks for each of what is listed, 100 are never reached.
_MOST_SAID: Final = 16
_MOST_LINES: Final = 5
_MOST_COSTS: Final = 4
_NOTICES: Final[Mapping[str, str]] = {
    Notices.MENTION: "The thread mentions me",
    Notices.BOTH: "The thread mentions me, and a direct message",
    Notices.DIRECT: "A direct message, and no mention",
    Notices.NEITHER: "Neither: no mention, no message",
}
_TYPING: Final = (ActionId.TYPE_COMMAND, ActionId.PLAN_COMMAND, ActionId.RESUME_COMMAND)


def home_view(home: Home, *, now: datetime, emulated: bool, said: Content | None) -> dict[str, Any]:
    """Draw Home; `said` is the answer to the button that was pressed there."""
    answer = [block for block in said.blocks if block["type"] != "actions"] if said else []
    blocks = [
        header(APP_NAME),
        actions([button("New run\u2026", action_id=ActionId.OPEN_FORM, value="{}")]),
        *answer[:_MOST_SAID],
        *([divider()] if answer else []),
        _in_all(home, emulated=emulated),
        *_listed("Waiting for you", (_to_decide(run) for run in home.waiting[:MOST_OPEN])),
        *_listed("Your runs", (_run(view, now) for view in home.mine)),
        *_lines("Running in your channels", home.others, now),
        *_lines("Queue", home.queue, now),
        *_listed("Kept clusters", (_cluster(each, home.user_id, now) for each in home.kept)),
    ]
    if not home.mine:
        blocks.append(section(f"You have no run. New run, or `{COMMAND}` in a channel, plans one."))
    blocks += _settings(home)
    blocks.append(
        context(
            f"as of {md.clock(now)} {md.DOT} list prices {md.DOT} open Home again for newer ones"
        )
    )
    return {"type": "home", "blocks": blocks}


def _in_all(home: Home, *, emulated: bool) -> Block:
    price = md.money(sum(words.price_per_hour(each) for each in home.clusters))
    note = " emulated" if emulated else ""
    there = f"{counted(home.num_runs, 'run')}, {counted(len(home.clusters), 'cluster')}"
    month, least = home.month, "at least " if home.month.since is not None else ""
    of = {
        md.channel(each): f" of {md.money_escaped(usd)}"
        for each, usd in home.budgets.items()
        if usd
    }
    costs = {"yours": sum(each.usd for each in month.spent if each.user_id == home.user_id)}
    for each in month.spent:
        place = md.channel(each.channel_id)
        costs[place] = costs.get(place, 0.0) + each.usd
    return fields(
        [
            ("Now, everybody's", f"{there} {md.DOT} {price} an hour{note}"),
            ("Waiting for you", counted(len(home.waiting), "approval")),
            *(
                (f"This month, {what}", f"{least}{md.money_escaped(usd)}{note}{of.get(what, '')}")
                for what, usd in [*costs.items()][:_MOST_COSTS]
            ),
        ]
    )


def _settings(home: Home) -> list[Block]:
    text = (
        "*Your settings*\nHow do you hear of what concerns your runs: success, failure, approval, "
        "money?"
    )
    chosen = choice(_NOTICES, action_id=ActionId.SET_NOTICES, chosen=home.notices)
    blocks = [section(text), actions([chosen], block_id="settings")]
    amounts = {str(usd): f"${usd:,} a month" for usd in BUDGETS_USD} | {"0": "What its rules say"}
    for channel_id in home.administered[:_MOST_COSTS]:
        budget = home.budgets[channel_id]
        now = f"{md.money(budget)} a month" if budget else "no end"
        about = f"*Budget of {md.channel(channel_id)}*: {now}. The lower counts of its rules' and"
        chosen = choice(amounts, action_id=ActionId.SET_BUDGET, chosen=f"{budget:g}")
        named = {"block_id": f"{BUDGET_OF}{channel_id}", "accessory": chosen}
        blocks.append(section(about) | named)
    return blocks


def _listed(title: str, entries: Iterable[list[Block]]) -> list[Block]:
    blocks = [block for entry in entries for block in entry]
    return [header(title), *blocks] if blocks else []


def _to_decide(subject: Run | Cluster) -> list[Block]:
    asked, channel_id = subject.approval, channel_of(subject)
    assert asked is not None  # it waits for an approval
    wish = asked.wish
    what = "a budget of" if asked.is_of_budget else "about"
    title = subject.request.title if isinstance(subject, Run) else f"cluster {subject.label}"
    text = (
        f"\u270b *{md.escape(title, 100)}* {md.code(subject.id, 120)}\n"
        f"{wish.nodes} {md.TIMES} {md.escape(wish.instance_type, 60)} {md.DOT} {what} "
        f"{md.money_escaped(wish.usd)} {md.DOT} {md.money(wish.usd_per_hour)} an hour {md.DOT} "
        f"{md.user(asker_of(subject))} in {md.channel(channel_id)}\n"
        f"{md.escape('; '.join(asked.reasons), 600)}"
    )
    return [section(text), *_named(approval_blocks(subject)[-1:], subject.id)]


def _run(view: RunView, now: datetime) -> list[Block]:
    value = RunButton(run_id=view.run.run_id).model_dump_json()
    status = button("Status", action_id=ActionId.SHOW_STATUS, value=value)
    acting = [each for row in run_buttons(view) for each in row["elements"]]
    return [section(_line(view, now)), *_named([actions([status, *acting])], view.run.run_id)]


def _line(view: RunView, now: datetime) -> str:
    place = md.channel(view.run.request.channel_id)
    why = words.queueing(view) if view.run.phase is RunPhase.QUEUED else ""
    return f" {md.DOT} ".join(filter(None, [run_line(view, now=now), why, place]))


def _lines(title: str, views: Sequence[RunView], now: datetime) -> list[Block]:
    """List what has no buttons here."""
    lines = [_line(view, now) for view in views[:_MOST_LINES]]
    if len(views) > len(lines):
        lines.append("and more: `/train list` in a channel shows its own")
    return [header(title), section("\n".join(lines))] if lines else []


def _cluster(view: ClusterView, user_id: str, now: datetime) -> list[Block]:
    asked = view.cluster.requester
    is_own = asked is not None and asked.user_id == user_id
    buttons = _named(cluster_buttons(view), view.cluster.id) if is_own else []
    return [section(cluster_line(view, now=now)), *buttons]


def _named(buttons: list[Block], owner: str) -> list[Block]:
    """Give a row of buttons an id of its own, and leave out those that type a command.

    Home is no channel, in which a command could be meant.
    """
    named = []
    for row in buttons:
        acting = [each for each in row["elements"] if each["action_id"] not in _TYPING]
        if acting:
            named.append(row | {"elements": acting, "block_id": f"{row['block_id']}:{owner}"})
    return named
