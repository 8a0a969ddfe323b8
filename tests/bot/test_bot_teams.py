"""Two workspaces of one deployment, in which channels and people have the same ids."""

from __future__ import annotations

from typing import Any

import pytest
from bot_world import BOT_TOKEN, CHANNEL, SECRET, TEAM, USER, Person, Story, keep_secret, seen

from bot.actions import RunButton
from stationmaster.commands import Actor, set_notices
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase

SECOND, TOKEN = "T0SECOND", "xoxb-second"
BOTH = SECRET | {"team_id": TEAM, "teams": {SECOND: {"bot_token": TOKEN}}}
THEIR_USER = f"{SECOND}/{USER}"


@pytest.fixture
def other(person: Person) -> Person:
    keep_secret(BOTH)
    return Person(person.slack, team=SECOND)


@pytest.fixture
def runs(person: Person, other: Person, services: Any, monkeypatch: Any) -> list[Run]:
    """One run of each, though a channel may have one only; the first workspace's first."""
    monkeypatch.setenv("STATIONMASTER_MAX_CONCURRENT_RUNS_PER_CHANNEL", "1")
    for each in (person, other):
        assert "is on its way" in seen(each.type("tiny-llama"))
    found = services.runs.list_recent()
    return sorted(found, key=lambda run: run.request.team_id == SECOND)


def test_each_workspace_has_its_own_card_runs_home_audit_and_limits(person, other, runs, slack):
    assert [run.request.channel_id for run in runs] == [CHANNEL, f"{SECOND}/{CHANNEL}"]
    posts = [(call.token, call.arguments["channel"]) for call in slack.cards]
    assert posts == [(BOT_TOKEN, CHANNEL), (TOKEN, CHANNEL)]
    for who, mine, theirs in ((person, *runs), (other, *runs[::-1])):
        who.open_home()
        home = slack.of("views.publish")[-1]
        assert home.arguments["user_id"] == USER
        for shown in (seen(who.type("list")), str(home.arguments)):
            assert (mine.run_id in shown, theirs.run_id in shown) == (True, False)
        assert seen(who.type("audit")).count("start runs") == 1
        assert "runs at most 1 at a time, and 1 has not" in seen(who.type("tiny-llama seed=2"))
        who.press("stop_run", RunButton(run_id=theirs.run_id).model_dump_json())
        assert "no run is called" in slack.responses[-1].seen


def test_news_of_a_run_reach_its_own_workspace_and_person(runs, slack, services, clock, tells):
    _, its = runs
    set_notices(services, Actor(user_id=THEIR_USER, channel_id=""), "direct")
    story = Story(services, clock, its.run_id, count=len(services.runs.events(its.run_id)))
    clock.advance(60)
    story.phases(RunPhase.FAILED, reason="out of memory")
    tells()

    told = [call for call in slack.calls if "out of memory" in str(call.arguments)]
    assert {call.token for call in told} == {TOKEN}
    assert {call.arguments["channel"] for call in told} == {CHANNEL, "D0OPERATOR"}


def test_messages_buttons_and_forms_are_those_of_their_workspace(other, runs, slack, services):
    other.write("<@U0BOT> status")
    said = slack.of("chat.postEphemeral")[-1]
    assert (said.token, said.arguments["channel"], said.arguments["user"]) == (TOKEN, CHANNEL, USER)
    assert runs[1].run_id in said.seen

    other.type("")
    form = slack.of("views.open")[-1]
    other.in_form("block_actions", form.arguments["view"], {"recipe": "tiny-llama"})
    assert {form.token, slack.of("views.update")[-1].token} == {TOKEN}
    other.press("stop_run", RunButton(run_id=runs[1].run_id).model_dump_json())
    assert services.runs.load(runs[1].run_id).stop_requested_by == THEIR_USER


def test_rules_of_its_channel_name_people_and_groups_with_the_workspace(other, slack, set_rules):
    set_rules({"operators": [f"{SECOND}/S0LEADS"]}, f"{SECOND}/{CHANNEL}")
    slack.groups["S0LEADS"] = [USER]

    assert "is on its way" in seen(other.type("tiny-llama"))
    assert slack.of("usergroups.users.list")[-1].token == TOKEN
    assert "gives it to <!subteam^S0LEADS>" in seen(other.type("tiny-llama", user_id="U0NOT"))


def test_workspace_is_refused_until_it_has_installed_the_app(person, slack):
    assert "is on its way" in seen(person.type("tiny-llama"))
    other = Person(slack, team=SECOND)
    keep_secret(BOTH | {"teams": {"T0THIRD": {"bot_token": "xoxb-third"}}})
    assert "has not installed the app" in other.type("tiny-llama")["body"]
    assert len(slack.cards) == 1
    keep_secret(BOTH)
    assert "is on its way" in seen(other.type("tiny-llama"))


def test_organisation_that_installed_the_app_is_one_team(person, slack, services):
    keep_secret(BOTH | {"teams": {"E0ORG": {"bot_token": TOKEN}}})
    org = {"enterprise_id": "E0ORG", "is_enterprise_install": "true"}
    one, two = (Person(slack, team=team) for team in ("T0ONE", "T0TWO"))
    one.type("tiny-llama", **org)
    (run,) = services.runs.list_recent()

    assert run.run_id in seen(two.type("list", **org))
    of_org = {"enterprise": {"id": "E0ORG"}, "is_enterprise_install": True, "team": None}
    anyone = Person(slack, team="E0ORG")
    anyone.press("stop_run", RunButton(run_id=run.run_id).model_dump_json(), **of_org)
    assert services.runs.load(run.run_id).stop_requested_by == f"E0ORG/{USER}"
    assert slack.cards[0].token == TOKEN
