"""The form of a start: it opens, its plan follows its fields, and it starts what they say, once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bot_world import CHANNEL, USER, Person, seen, started_workflows
from recording_slack import RecordingSlack, Refusal

from bot.actions import ActionId
from bot.blocks.start_form import fields_of
from bot.start_form import as_typed
from stationmaster.local.slack.blocks import check_view

ENTERED = {"recipe": "tiny-llama", "nodes": "2", "steps": "60"}


@pytest.fixture
def rules(set_rules: Any) -> None:
    its = {"operators": [USER], "approvers": ["U0OTHER"]}
    set_rules(its | {"approval": {"usd_per_hour": 0.5}})


class Desk:
    """Somebody with the form before them."""

    def __init__(self, person: Person, slack: RecordingSlack) -> None:
        self.person, self.slack = person, slack

    def last(self, method: str) -> Any:
        return self.slack.of(method)[-1].arguments["view"]

    def open(self) -> Any:
        assert self.person.type("")["body"] == ""
        return self.last("views.open")

    def enter(self, view: dict[str, Any], **entered: str) -> Any:
        """Change fields, and return the form as it is then."""
        self.person.in_form("block_actions", view, entered)
        return self.last("views.update")

    def send(self, view: dict[str, Any], **more: Any) -> dict[str, Any]:
        entered = more.pop("entered", ENTERED)
        answer: dict[str, Any] = self.person.in_form("view_submission", view, entered, **more)
        assert "view" not in answer or not check_view(answer["view"])
        return answer


@pytest.fixture
def desk(person: Person, slack: RecordingSlack) -> Desk:
    return Desk(person, slack)


def shown(view: dict[str, Any]) -> str:
    return json.dumps(view["blocks"], ensure_ascii=False)


def test_command_alone_opens_a_form_whose_plan_follows_its_fields(desk, services):
    view = desk.open()
    assert "Choose a recipe" in shown(view)

    planned = shown(desk.enter(view, **ENTERED))

    assert "✓ fits:" in planned
    assert "an hour" in planned
    assert "`/train tiny-llama nodes=2 steps=60`" in planned
    assert "nodes=99 is not accepted" in shown(desk.enter(view, recipe="tiny-llama", nodes="99"))
    assert desk.slack.of("views.update")[-1].arguments["hash"] == "1.a"
    assert services.runs.list_recent() == []


def test_form_starts_what_the_typed_command_would_and_once(desk, services, settings):
    view = desk.enter(desk.open(), **ENTERED)

    entered = ENTERED | {"more": "learning_rate=0.001"}
    first = shown(desk.send(view, entered=entered)["view"])
    again = shown(desk.send(view, entered=entered | {"name": "other"})["view"])

    assert "is on its way" in first
    assert "nothing new was started" in again
    (run,) = services.runs.list_recent()
    assert run.request.command == "/train tiny-llama nodes=2 steps=60 learning_rate=0.001"
    assert (run.request.channel_id, run.request.user_id) == (CHANNEL, USER)
    assert started_workflows(settings) == [run.run_id]
    assert next(services.audit.newest_first(CHANNEL)).via == "modal"


def test_price_that_was_not_shown_is_shown_before_anything_starts(desk, services):
    view = desk.enter(desk.open(), recipe="tiny-llama")

    entered = ENTERED | {"steps": "600"}
    answer = desk.send(view, entered=entered)

    assert "Nothing has started yet" in shown(answer["view"])
    assert services.runs.list_recent() == []
    assert "is on its way" in shown(desk.send(answer["view"], entered=entered)["view"])


@pytest.mark.parametrize(
    ("field", "value", "at", "said"),
    [
        ("nodes", "99", "nodes", "nodes=99 is not accepted"),
        ("steps", "many", "steps", 'steps="many" is not accepted'),
        ("name", "-", "name", "name=- is not accepted"),
        ("dataset", "nowhere", "dataset", 'dataset="nowhere" is not known'),
        ("more", "nodes=99", "more", "nodes=99 is not accepted"),
        ("more", "learning=3", "more", "learning"),
        ("more", "'", "more", "a quote is opened"),
        ("recipe", "stop", "recipe", "choose a recipe"),
        ("recipe", "hub", "more", "write hf:ORG/MODEL first here"),
    ],
)
def test_refusal_stands_at_the_field_that_it_is_about(desk, services, field, value, at, said):
    entered = {"recipe": "tiny-llama", field: value}

    answer = desk.send(desk.open(), entered=entered)

    assert answer["response_action"] == "errors"
    assert list(answer["errors"]) == [at]
    assert said in answer["errors"][at]
    assert services.runs.list_recent() == []


def filled(view: dict[str, Any]) -> dict[str, str]:
    """What stands in the fields of a form that was just opened."""
    elements = {each["block_id"]: each.get("element", {}) for each in view["blocks"][:8]}
    return {
        name: each.get("initial_value") or each["initial_option"]["value"]
        for name, each in elements.items()
        if each.keys() & {"initial_value", "initial_option"}
    }


def test_form_of_a_run_is_filled_with_all_its_keys_and_shows_their_plan(desk, services):
    desk.person.type("tiny-llama steps=60 nodes=2 learning_rate=0.001 name=books")
    (run,) = services.runs.list_recent()
    desk.person.press(ActionId.EDIT_RUN, json.dumps({"run_id": run.run_id}))
    opened = desk.last("views.open")
    planned = desk.last("views.update")

    keys = ENTERED | {"instance": "m5.2xlarge", "more": "learning_rate=0.001"}
    assert filled(opened) == filled(planned) == keys
    assert "✓ fits:" in shown(planned)
    assert "is on its way" in shown(desk.send(planned, entered=filled(planned))["view"])
    assert len(services.runs.list_recent()) == 2


def test_form_of_a_plan_keeps_what_has_no_field_among_the_other_keys(desk):
    planned = desk.person.type("plan tiny-llama nodes=2 preset=smoke")["answer"]
    (row,) = [each for each in planned["blocks"] if each["type"] == "actions"]
    desk.person.press(ActionId.EDIT_COMMAND, row["elements"][0]["value"])
    keys = {"recipe": "tiny-llama", "instance": "default", "nodes": "2", "more": "preset=smoke"}
    assert filled(desk.last("views.open")) == keys

    path = f"s3://bucket/{'x' * 400}"
    words = f"hf:Qwen/Qwen2.5-0.5B instance=x9.huge command='a b' steps=5 dataset={path}"
    assert (fields := fields_of(words)) == {
        "recipe": "hub",
        "steps": "5",
        "more": f"hf:Qwen/Qwen2.5-0.5B instance=x9.huge command='a b' dataset={path}",
    }
    assert sorted(as_typed(fields).split()) == sorted(words.split())


def test_run_whose_keys_have_no_room_in_a_form_says_so(desk, ended, monkeypatch):
    monkeypatch.setattr("stationmaster.commands.words_of", lambda *_, **__: "x" * 1_201)
    desk.person.press(ActionId.EDIT_RUN, json.dumps({"run_id": ended}))

    assert "a form takes at most 1,200 characters" in desk.slack.responses[-1].seen
    assert desk.slack.of("views.open") == []


def test_form_that_slack_does_not_open_is_help(desk, slack):
    slack.refuse("views.open", Refusal(error="expired_trigger_id"), Refusal(status=503))

    assert "Train from this channel" in seen(desk.person.type(""))
    desk.person.press(ActionId.OPEN_FORM, "{}")
    assert "type /train tiny-llama" in slack.responses[-1].seen
    desk.person.press(ActionId.OPEN_FORM, "{}")
    assert slack.of("views.open")[-1].arguments["view"]["callback_id"] == "start_form"


def test_approval_is_asked_for_when_the_form_is_sent(desk, services, settings, rules):
    view = desk.enter(desk.open(), **ENTERED)
    assert "somebody else is asked first" in shown(view)

    assert "waits for an approval" in shown(desk.send(view)["view"])
    assert started_workflows(settings) == []


def test_form_of_another_version_or_while_the_table_is_gone_says_so(
    desk, settings, services, monkeypatch
):
    view = desk.enter(desk.open(), **ENTERED)

    answer = desk.send(view | {"private_metadata": '{"channel": "#general"}'})
    assert "of another version" in answer["errors"]["more"]

    monkeypatch.setattr("bot.start_form.parse_command", lambda *_, **__: 1 / 0)
    assert "could not be carried out (reference" in shown(desk.send(view)["view"])
    assert services.runs.list_recent() == []


@pytest.mark.parametrize(
    "change", [{"hash": None}, {"private_metadata": "x" * 3_001}, {"callback_id": ""}, {"id": 1}]
)
def test_form_that_is_none_of_slacks_is_refused(desk, change):
    view = desk.open()
    deliver = desk.person.deliver_form

    assert deliver("view_submission", view, ENTERED)["statusCode"] == 200
    assert deliver("view_submission", view | change, ENTERED)["statusCode"] == 400
