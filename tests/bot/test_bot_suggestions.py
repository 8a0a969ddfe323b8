"""A corrected command comes as a button that types it, under the same rules as what is typed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bot_world import Person, started_workflows
from recording_slack import RecordingSlack

from bot.actions import ActionId
from stationmaster.services import Services
from stationmaster.settings import Settings


def buttons(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The buttons of an answer, by what they say."""
    rows = [each for each in answer["answer"]["blocks"] if each["type"] == "actions"]
    return {each["text"]["text"]: each for row in rows for each in row["elements"]}


def click(person: Person, slack: RecordingSlack, element: dict[str, Any], **more: str) -> str:
    person.press(element["action_id"], element["value"], **more)
    return slack.responses[-1].seen


def test_mistyped_start_is_planned_or_run_by_a_button(
    person: Person, slack: RecordingSlack, services: Services, settings: Settings
) -> None:
    offered = buttons(person.type("tiny-lama nodes=2 steps=60"))

    assert "It would create" in click(person, slack, offered["Plan it"])
    assert services.runs.list_recent() == []
    assert offered["Run it"]["confirm"]["text"]["text"] == "`/train tiny-llama nodes=2 steps=60`"

    assert "is on its way" in click(person, slack, offered["Run it"])
    (run,) = services.runs.list_recent()
    assert run.request.command == "/train tiny-llama nodes=2 steps=60"
    assert started_workflows(settings) == [run.run_id]


def test_second_click_in_the_same_moment_starts_nothing_more(
    person: Person, slack: RecordingSlack, services: Services
) -> None:
    run_it = buttons(person.type("tiny-lama nodes=2"))["Run it"]

    for trigger in ("one", "two"):
        said = click(person, slack, run_it, trigger_id=trigger)

    assert "was requested a moment ago" in said
    assert len(services.runs.list_recent()) == 1


def test_what_only_shows_something_asks_nothing(person: Person, slack: RecordingSlack) -> None:
    offered = buttons(person.type("statsu"))

    assert list(offered) == ["Show it"]
    assert "confirm" not in offered["Show it"]
    assert "there is no run in this channel yet" in click(person, slack, offered["Show it"])


@pytest.mark.parametrize("value", ["", "{}", '{"text": ""}', json.dumps({"text": "x" * 2_000})])
def test_value_of_another_version_is_refused(
    person: Person, slack: RecordingSlack, value: str
) -> None:
    person.press(ActionId.TYPE_COMMAND, value)

    assert "older version" in slack.responses[-1].seen
