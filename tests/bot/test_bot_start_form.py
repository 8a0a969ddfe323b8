"""The form of a start: it opens, its plan follows its fields, and it starts what they say, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bot_world import CHANNEL, USER, Person, seen, started_workflows
from recording_slack import RecordingSlack, Refusal

from bot.actions import ActionId
from stationmaster.local.slack.blocks import check_view
from stationmaster.services import Services
from stationmaster.settings import Settings

ENTERED = {"recipe": "tiny-llama", "nodes": "2", "steps": "60"}
LEAD = "U0LEAD"


@pytest.fixture
def rules(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rules.json"
    its = {"operators": [USER], "viewers": [LEAD], "approvers": ["U0OTHER"]}
    path.write_text(json.dumps({"channels": {CHANNEL: its | {"approval": {"usd_per_hour": 0.5}}}}))
    monkeypatch.setenv("STATIONMASTER_RULES_FILE", str(path))


class Desk:
    """Somebody with the form before them."""

    def __init__(self, person: Person, slack: RecordingSlack) -> None:
        self.person, self.slack = person, slack

    def open(self) -> dict[str, Any]:
        assert self.person.type("")["body"] == ""
        view: dict[str, Any] = self.slack.of("views.open")[-1].arguments["view"]
        return view

    def enter(self, view: dict[str, Any], **entered: str) -> dict[str, Any]:
        """Change fields, and return the form as it is then."""
        self.person.in_form("block_actions", view, entered)
        changed: dict[str, Any] = self.slack.of("views.update")[-1].arguments["view"]
        return changed

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


def test_command_alone_opens_a_form_whose_plan_follows_its_fields(
    desk: Desk, services: Services
) -> None:
    view = desk.open()
    assert "Choose a recipe" in shown(view)

    planned = shown(desk.enter(view, **ENTERED))

    assert "✓ fits:" in planned
    assert "an hour" in planned
    assert "`/train tiny-llama nodes=2 steps=60`" in planned
    assert "nodes=99 is not accepted" in shown(desk.enter(view, recipe="tiny-llama", nodes="99"))
    assert desk.slack.of("views.update")[-1].arguments["hash"] == "1.a"
    assert services.runs.list_recent() == []


def test_form_starts_what_the_typed_command_would_and_once(
    desk: Desk, services: Services, settings: Settings
) -> None:
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


def test_price_that_was_not_shown_is_shown_before_anything_starts(
    desk: Desk, services: Services
) -> None:
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
    ],
)
def test_refusal_stands_at_the_field_that_it_is_about(
    desk: Desk, services: Services, field: str, value: str, at: str, said: str
) -> None:
    entered = {"recipe": "tiny-llama", field: value}

    answer = desk.send(desk.open(), entered=entered)

    assert answer["response_action"] == "errors"
    assert list(answer["errors"]) == [at]
    assert said in answer["errors"][at]
    assert services.runs.list_recent() == []


def test_form_that_slack_does_not_open_is_help(desk: Desk, slack: RecordingSlack) -> None:
    slack.refuse("views.open", Refusal(error="expired_trigger_id"), Refusal(status=503))

    assert "Train from this channel" in seen(desk.person.type(""))
    desk.person.press(ActionId.OPEN_FORM, "{}")
    assert "type /train tiny-llama" in slack.responses[-1].seen
    desk.person.press(ActionId.OPEN_FORM, "{}")
    assert slack.of("views.open")[-1].arguments["view"]["callback_id"] == "start_form"


def test_role_and_approval_are_asked_again_when_the_form_is_sent(
    desk: Desk, services: Services, settings: Settings, rules: None
) -> None:
    view = desk.enter(desk.open(), **ENTERED)
    assert "somebody else is asked first" in shown(view)

    refused = desk.send(view, user={"id": LEAD, "name": "lead"})
    assert "you may not start runs here" in shown(refused["view"])
    assert services.runs.list_recent() == []

    assert "waits for an approval" in shown(desk.send(view)["view"])
    assert started_workflows(settings) == []


def test_form_of_another_version_or_while_the_table_is_gone_says_so(
    desk: Desk, settings: Settings, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = desk.enter(desk.open(), **ENTERED)

    answer = desk.send(view | {"private_metadata": '{"channel": "#general"}'})
    assert "of another version" in answer["errors"]["more"]

    monkeypatch.setattr("bot.start_form.parse_command", lambda *_, **__: 1 / 0)
    assert "could not be carried out (reference" in shown(desk.send(view)["view"])
    assert services.runs.list_recent() == []


@pytest.mark.parametrize(
    "change", [{"hash": None}, {"private_metadata": "x" * 3_001}, {"callback_id": ""}, {"id": 1}]
)
def test_form_that_is_none_of_slacks_is_refused(desk: Desk, change: dict[str, Any]) -> None:
    view = desk.open()
    deliver = desk.person.deliver_form

    assert deliver("view_submission", view, ENTERED)["statusCode"] == 200
    assert deliver("view_submission", view | change, ENTERED)["statusCode"] == 400
