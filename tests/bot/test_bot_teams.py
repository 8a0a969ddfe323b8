"""Two workspaces of one deployment, in which channels and people have the same ids."""

import pytest
from bot_world import BOT_TOKEN, CHANNEL, SECRET, TEAM, USER, Person, Story, keep_secret, seen

from bot.actions import RunButton
from stationmaster.commands import Actor, set_notices
from stationmaster.domain.run.events import RunPhase

SECOND, TOKEN = "T0SECOND", "xoxb-second"
BOTH = SECRET | {"team_id": TEAM, "teams": {SECOND: {"bot_token": TOKEN}}}


@pytest.fixture
def other(person):
    keep_secret(BOTH)
    return Person(person.slack, team=SECOND)


@pytest.fixture
def runs(person, other, services, monkeypatch):
    """One run of each, though a channel may have one only; the first workspace's first."""
    monkeypatch.setenv("STATIONMASTER_MAX_CONCURRENT_RUNS_PER_CHANNEL", "1")
    for each in (person, other):
        assert "is on its way" in seen(each.type("tiny-llama"))
    return sorted(services.runs.list_recent(), key=lambda run: run.request.team_id == SECOND)


def stop(who, run, **more):
    who.press("stop_run", RunButton(run_id=run.run_id).model_dump_json(), **more)


def test_each_workspace_has_its_own_card_runs_home_audit_and_limits(person, other, runs, slack):
    posts = [(call.token, call.arguments["channel"]) for call in slack.cards]
    assert posts == [(BOT_TOKEN, CHANNEL), (TOKEN, CHANNEL)]
    for who, mine, theirs in ((person, *runs), (other, *runs[::-1])):
        who.open_home()
        home = slack.of("views.publish")[-1].arguments
        assert home["user_id"] == USER
        for shown in (seen(who.type("list")), str(home)):
            assert (mine.run_id in shown, theirs.run_id in shown) == (True, False)
        assert seen(who.type("audit")).count("start runs") == 1
        assert "runs at most 1 at a time, and 1 has not" in seen(who.type("tiny-llama seed=2"))
        stop(who, theirs)
        assert "no run is called" in slack.responses[-1].seen


def test_news_of_a_run_reach_its_own_workspace_and_person(runs, slack, services, clock, tells):
    set_notices(services, Actor(user_id=f"{SECOND}/{USER}", channel_id=""), "direct")
    Story(services, clock, runs[1].run_id, count=9).phases(RunPhase.FAILED, reason="no memory")
    clock.advance(60)
    tells()

    told = [call for call in slack.calls if "no memory" in str(call.arguments)]
    assert {call.token for call in told} == {TOKEN}
    assert {call.arguments["channel"] for call in told} == {CHANNEL, "D0OPERATOR"}


def test_messages_buttons_forms_and_rules_are_those_of_their_workspace(
    other, runs, slack, services, set_rules
):
    set_rules({"approvers": [f"{SECOND}/S0LEADS"]}, f"{SECOND}/{CHANNEL}")
    slack.groups["S0LEADS"] = ["U0LEAD"]
    other.write("<@U0BOT> status")
    said = slack.of("chat.postEphemeral")[-1]
    assert (said.token, said.arguments["channel"], said.arguments["user"]) == (TOKEN, CHANNEL, USER)
    assert runs[1].run_id in said.seen
    other.type("")
    form = slack.of("views.open")[-1]
    other.in_form("block_actions", form.arguments["view"], {"recipe": "tiny-llama"})
    assert {form.token, slack.of("views.update")[-1].token} == {TOKEN}
    stop(other, runs[1], user="U0NOT")
    assert "gives it to <!subteam^S0LEADS>" in slack.responses[-1].seen
    stop(other, runs[1], user="U0LEAD")
    assert slack.of("usergroups.users.list")[-1].token == TOKEN
    assert services.runs.load(runs[1].run_id).stop_requested_by == f"{SECOND}/U0LEAD"


def test_workspace_is_refused_until_it_has_installed_the_app(person, slack):
    person.type("tiny-llama")  # by a function that is warm then
    keep_secret(BOTH | {"teams": {}})
    other = Person(slack, team=SECOND)
    assert "has not installed the app" in other.type("tiny-llama")["body"]
    keep_secret(BOTH)
    assert "is on its way" in seen(other.type("tiny-llama"))


def test_organisation_that_installed_the_app_is_one_team(slack, services, person):
    keep_secret(BOTH | {"teams": {"E0ORG": {"bot_token": TOKEN}}})
    org = {"enterprise_id": "E0ORG", "is_enterprise_install": "true"}
    Person(slack, team="T0ONE").type("tiny-llama", **org)
    (run,) = services.runs.list_recent()

    assert run.run_id in seen(Person(slack, team="T0TWO").type("list", **org))
    of_org = {"enterprise": {"id": "E0ORG"}, "is_enterprise_install": True, "team": None}
    stop(Person(slack, team="E0ORG"), run, **of_org)
    assert services.runs.load(run.run_id).stop_requested_by == f"E0ORG/{USER}"
