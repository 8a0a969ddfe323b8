"""Somebody's Home: what is theirs, what waits for them, and buttons that act where they belong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from bot_world import CHANNEL, REGION, USER, Story
from recording_slack import RecordingSlack, Refusal

from bot.actions import CommandButton
from bot.blocks.elements import Content, section
from bot.blocks.home import home_view
from stationmaster.aws import table
from stationmaster.commands.home import MOST_ENDED, MOST_OPEN, show_home
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import ClusterView, RunView
from stationmaster.local.slack.blocks import check_view

LEAD = "U0LEAD"


@pytest.fixture
def rules(set_rules: Any) -> None:
    set_rules({"approvers": [LEAD], "approval": {"usd_per_hour": 0.5}})


def home(slack: RecordingSlack) -> dict[str, Any]:
    view: dict[str, Any] = slack.of("views.publish")[-1].arguments["view"]
    return view


def seen(slack: RecordingSlack) -> str:
    return json.dumps(home(slack), ensure_ascii=False)


def buttons(slack: RecordingSlack) -> dict[str, dict[str, Any]]:
    """The buttons of Home, by what they say."""
    rows = [each for each in home(slack)["blocks"] if each["type"] == "actions"]
    elements = [each for row in rows for each in row["elements"]]
    return {each["text"]["text"]: each for each in elements if each["type"] == "button"}


def test_home_shows_ones_own_and_its_buttons_act(person, slack, story, cluster, services, clock):
    clock.at = datetime.now(UTC)  # by which the handler goes
    failed = Story(services, clock, run_id="tiny-llama-00000001")
    failed.begin()
    failed.phases(RunPhase.FAILED, reason="out of memory")
    story.begin()
    cluster.begin()
    kept = cluster.become_ready()

    person.open_home()
    assert story.run_id in seen(slack)
    assert f"<#{CHANNEL}>" in seen(slack)
    assert failed.run_id in seen(slack)
    labels = "New run…|Status|Stop|Run again…|Extend by 2h|Delete"
    assert "|".join(buttons(slack)) == labels
    assert "1 run, 3 clusters · $36.00 an hour" in seen(slack)
    assert "0 approvals" in seen(slack)
    yours, all_of_it = (
        re.search(rf'This month, {re.escape(whose)}\*\\n([^"]+)"', seen(slack))[1]
        for whose in ("yours", f"<#{CHANNEL}>")
    )
    assert yours == all_of_it  # as much as the moments by the handler's own clock have cost
    assert "$0." in yours
    assert slack.of("views.publish")[-1].arguments["user_id"] == USER

    person.press_in_home(buttons(slack)["Extend by 2h"])
    assert "cluster `team-a` stays" in seen(slack)
    extended = services.cluster_states.load(cluster.cluster_id)
    assert extended.keep_until == kept.keep_until + timedelta(hours=2)

    person.press_in_home(buttons(slack)["Status"])
    assert f"by <@{USER}>" in seen(slack).split("Now, everybody's")[0]

    person.press_in_home(buttons(slack)["Run again…"])
    opened = slack.of("views.open")[-1].arguments["view"]
    assert json.loads(opened["private_metadata"])["channel"] == CHANNEL

    person.press_in_home(buttons(slack)["Stop"])
    assert "is being stopped" in seen(slack)
    assert services.runs.load(story.run_id).stop_requested_by == USER
    person.press_in_home(buttons(slack)["Delete"])
    assert "is being deleted" in seen(slack)
    assert services.cluster_states.load(cluster.cluster_id).deleted_by == USER
    assert next(services.audit.newest_first(CHANNEL)).via == "home"


def test_home_lists_what_waits_and_what_others_run_in_ones_own_channels_only(
    person, slack, cluster, services, clock
):
    clock.at = datetime.now(UTC)
    cluster.begin()
    cluster.become_ready()
    for number in range(3):
        cluster.use(f"tiny-llama-{number:08}")
    person.type("ddp-cpu", user_id="U0OTHER")
    (other,) = (run for run in services.runs.list_open() if run.request.recipe == "ddp-cpu")

    person.open_home()
    queue = seen(slack).split('"Queue"')[1].split('"Kept clusters"')[0]
    assert "tiny-llama-00000002" in queue
    assert "place 1 of 1: 0 of 4 nodes free, 2 wanted" in queue
    assert "tiny-llama-00000001" not in queue
    assert other.run_id in seen(slack).split("Running in your channels")[1].split('"Queue"')[0]

    person.open_home("U0STRANGER")
    for name in ("tiny-llama-0", other.run_id, "team-a", CHANNEL):
        assert name not in seen(slack)


def test_settings_are_ones_own_and_home_shows_them(person, slack, services):
    def chosen(user: str) -> str:
        person.open_home(user)
        (row,) = (each for each in home(slack)["blocks"] if each.get("block_id") == "settings")
        return str(row["elements"][0]["initial_option"]["value"])

    element = {"action_id": "set_notices", "selected_option": {"value": "direct"}}
    person.press_in_home(element)
    assert (chosen(USER), chosen("U0OTHER")) == ("direct", "mention")
    person.press_in_home(element | {"selected_option": {"value": "x"}})
    assert "choose one of mention, both, direct, neither" in seen(slack)
    assert chosen(USER) == "direct"

    item = table.person(USER).attributes | {"notices": {"S": "loud"}}
    boto3.client("dynamodb", REGION).put_item(TableName="runs", Item=item)
    assert chosen(USER) == "mention"


def test_admin_sets_the_budget_of_a_month_that_nobody_else_sets(person, slack, services, set_rules):
    set_rules({"admins": [USER], "together": {"usd_a_month": 300}})

    def choose(usd: str, user: str = USER) -> str:
        block = next(each for each in home(slack)["blocks"] if "accessory" in each)
        element = block["accessory"] | {"block_id": block["block_id"]}
        person.press_in_home(element | {"selected_option": {"value": usd}}, user=user)
        return seen(slack)

    person.type("ddp-cpu")
    person.open_home()
    assert "$0.00 of $300.00" in seen(slack)
    assert "you may not set the budget of this channel" in choose("200", user="U0OTHER")
    person.open_home()
    assert "choose one of 0, 10, 20" in choose("7")
    assert "$0.00 of $300.00" in seen(slack)
    assert "$0.00 of $200.00" in choose("200")
    assert "$0.00 of $300.00" in choose("500")  # the lower one counts
    assert next(services.audit.newest_first(CHANNEL)).words == "set_budget 500"


def test_form_that_home_opens_asks_for_its_channel(person, slack, services):
    person.open_home()
    person.press_in_home(buttons(slack)["New run…"])
    view = slack.of("views.open")[-1].arguments["view"]
    entered = {"recipe": "tiny-llama", "nodes": "2"}

    refused = person.in_form("view_submission", view, entered)
    assert refused["errors"] == {"channel": "choose a channel"}
    person.in_form("block_actions", view, entered | {"channel": CHANNEL})
    planned = slack.of("views.update")[-1].arguments["view"]
    person.in_form("view_submission", planned, entered | {"channel": CHANNEL})
    (run,) = services.runs.list_recent()
    assert run.request.channel_id == CHANNEL


def test_home_of_an_approver_has_what_waits_for_them_and_of_nobody_else(
    person, slack, services, rules
):
    person.type("tiny-llama")
    (run,) = services.runs.list_recent()

    for user, waits in ((USER, False), ("U0OTHER", False), (LEAD, True)):
        person.open_home(user)
        assert ("Approve" in buttons(slack)) is waits
    approve, reject = buttons(slack)["Approve"], buttons(slack)["Reject"]

    person.press_in_home(approve, user="U0OTHER")
    assert "you may not approve runs and clusters here" in seen(slack)
    assert services.runs.load(run.run_id).phase is RunPhase.AWAITING_APPROVAL
    person.press_in_home(approve, user=LEAD)
    assert "is approved and starts" in seen(slack)
    assert "0 approvals" in seen(slack)
    person.press_in_home(reject, user=LEAD)
    assert "waits for no approval any more" in seen(slack)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"run_id": "gone-00000000"}', "there is no run or kept cluster"),
        ('{"cluster_id": "gone-00000000"}', "there is no run or kept cluster"),
        ("{", "of an older version"),
        (CommandButton(text="tiny-llama").model_dump_json(), "of an older version"),
    ],
)
def test_button_of_home_that_means_nothing_says_so(person, slack, services, value, said):
    person.press_in_home({"action_id": "type_command", "value": value})

    assert said in seen(slack)
    assert services.runs.list_recent() == []


def test_home_that_cannot_be_drawn_is_left_as_it_was(person, slack, monkeypatch):
    slack.refuse("views.publish", Refusal(error="ratelimited"))
    assert person.open_home()["statusCode"] == 200
    monkeypatch.setattr("bot.home.home_view", lambda *_, **__: 1 / 0)
    assert person.open_home()["statusCode"] == 200
    assert slack.of("views.publish") == []


def test_home_of_many_runs_is_bounded(person, cluster, services, clock, rules):
    person.type("tiny-llama")
    (run,) = services.runs.list_recent()
    kept = cluster.begin()
    for number in range(12):
        Story(services, clock, run_id=f"tiny-llama-{number:08}").begin()
    found = show_home(services, USER)
    assert (found.num_runs, len(found.mine)) == (13, MOST_OPEN)

    runs = [run.model_copy(update={"run_id": f"run-{number}"}) for number in range(60)]
    kinds = [kept.model_copy(update={"cluster_id": f"c-{number}"}) for number in range(60)]
    clusters = [ClusterView(each) for each in kinds]
    mine = [RunView(each) for each in runs[: MOST_OPEN + MOST_ENDED]]
    views = mine[:MOST_OPEN]
    many = replace(
        found, mine=mine, waiting=runs, queue=views, others=views, kept=clusters[:MOST_OPEN]
    )
    said = Content(text="logs", blocks=[section("line")] * 50)
    view = home_view(many, now=clock.now(), emulated=True, said=said)

    assert not check_view(view)
    assert len(view["blocks"]) > 90
