"""Commands in threads and in direct conversations, where no slash command can be typed."""

from __future__ import annotations

import json
import time
from typing import Any

import boto3
import pytest
from bot_world import BOT, CHANNEL, REGION, USER, Clock, Person, Story, started_workflows
from recording_slack import RecordingSlack, Refusal

from bot.mentions import read_message
from stationmaster.aws.delivery_store import Delivery, of_run
from stationmaster.domain.ids import RunId
from stationmaster.services import Services
from stationmaster.settings import Settings

ME = f"<@{BOT}>"
CARD = "1000.000042"


def whispers(slack: RecordingSlack) -> list[dict[str, Any]]:
    """What persons of the channel were shown, each for themselves."""
    return [call.arguments | {"seen": call.seen} for call in slack.of("chat.postEphemeral")]


@pytest.fixture
def in_thread(story: Story, services: Services, clock: Clock) -> RunId:
    """An older run with a card, whose thread is at `CARD`; the person has a newer one as well."""
    story.begin()
    services.deliveries.save(
        Delivery(owner=of_run(RunId(story.run_id)), channel_id=CHANNEL, card_ts=CARD),
        now=clock.now(),
    )
    clock.advance(60)
    return RunId(story.run_id)


def test_in_a_runs_thread_that_run_is_meant_and_one_person_sees_the_answer(
    person: Person, slack: RecordingSlack, services: Services, in_thread: RunId, clock: Clock
) -> None:
    clock.advance(60)
    person.type("tiny-llama")

    person.write(f"{ME} stpo", thread_ts=CARD)
    person.write(f"{ME} stop now", thread_ts=CARD)
    person.write(f"{ME} status", thread_ts="1000.000001")

    assert services.runs.load(in_thread).is_stopping
    mistyped, stopped, newest = whispers(slack)
    assert f"```/train stop {in_thread}```" in mistyped["seen"]
    assert (stopped["channel"], stopped["user"], stopped["thread_ts"]) == (CHANNEL, USER, CARD)
    assert in_thread in stopped["seen"]
    assert in_thread not in newest["seen"]


def test_direct_conversation_takes_commands_without_a_mention(
    person: Person, slack: RecordingSlack, in_thread: RunId, services: Services, clock: Clock
) -> None:
    delivery = services.deliveries.load(of_run(in_thread))
    moved = delivery.model_copy(update={"channel_id": "D0OPERATOR"})
    services.deliveries.save(moved, now=clock.now())

    person.write("status", channel="D0OPERATOR", thread_ts=CARD)

    (answer,) = slack.of("chat.postMessage")
    assert (answer.arguments["channel"], answer.arguments["thread_ts"]) == ("D0OPERATOR", CARD)
    assert in_thread in answer.seen


def test_event_that_slack_delivers_again_is_answered_once(
    person: Person, slack: RecordingSlack, settings: Settings, services: Services
) -> None:
    for _ in range(3):
        assert person.write(f"{ME} tiny-llama", event_id="Ev0SAME")["statusCode"] == 200

    assert len(whispers(slack)) == 1
    assert started_workflows(settings) == [run.run_id for run in services.runs.list_recent()]
    items = boto3.client("dynamodb", REGION).scan(TableName="runs")["Items"]
    (claim,) = (each for each in items if each["PK"]["S"] == "DELIVERY#message/Ev0SAME")
    assert int(claim["expires_at"]["N"]) - time.time() <= 3600


def test_event_whose_function_was_killed_is_answered_by_a_later_delivery(
    person: Person, slack: RecordingSlack, services: Services, settings: Settings
) -> None:
    services.deliveries.claim("message/Ev0KILLED", ["answer"], now=services.now())  # months ago

    person.write(f"{ME} tiny-llama", event_id="Ev0KILLED")

    assert len(whispers(slack)) == 1
    assert len(started_workflows(settings)) == 1


@pytest.mark.parametrize(
    "message",
    [
        {"user": BOT},
        {"user": "U0OTHERBOT", "bot_id": "B0OTHER"},
        {"user": "", "subtype": "message_changed", "type": "message"},
        {"subtype": "channel_join", "type": "message"},
        {"bots": ()},  # nobody says who the app is
        {"type": "message"},  # in a channel: it comes as a mention as well
    ],
)
def test_messages_of_apps_and_edits_are_acknowledged_and_not_answered(
    person: Person, slack: RecordingSlack, services: Services, message: dict[str, Any]
) -> None:
    assert person.write(f"{ME} tiny-llama", **message)["statusCode"] == 200

    assert slack.calls == []
    assert services.runs.list_recent() == []


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (ME, ""),
        (f"so {ME} /train logs", "logs"),
        (f"<@{BOT}|stationmaster> audit <@U0LEAD>", "audit <@U0LEAD>"),
        (f"<@U0LEAD> {ME}  a=1&amp;2&lt;3 ", "a=1&2<3"),
        (f"{ME} weights=<https://a.b/c|a.b/c> <http://x.y>", "weights=a.b/c http://x.y"),
    ],
)
def test_what_follows_the_mention_is_read_as_it_was_typed(written: str, read: str) -> None:
    message = {"type": "app_mention", "channel": CHANNEL, "user": USER, "text": written}
    more = {"thread_ts": None, "subtype": None, "bot_id": None, "user_team": ""}
    body = {"event_id": "Ev1", "team_id": "T", "authorizations": [{"user_id": BOT}]}

    typed = read_message(body | {"event": message | more})

    assert typed is not None
    assert (typed.text, typed.who.words) == (read, f"/train {read}")


def test_mistake_and_breakdown_are_answered_where_they_were_typed(
    person: Person, slack: RecordingSlack, settings: Settings
) -> None:
    person.write(f"{ME} stauts", thread_ts=CARD)
    slack.refuse("chat.postEphemeral", Refusal(error="internal_error"))
    assert person.write(f"{ME} help")["statusCode"] == 200  # nobody can be told
    boto3.client("stepfunctions", REGION).delete_state_machine(
        stateMachineArn=settings.train_state_machine_arn
    )
    person.write(f"{ME} tiny-llama")

    mistake, breakdown = whispers(slack)
    assert "did you mean /train status" in mistake["seen"]
    assert mistake["thread_ts"] == CARD
    assert "could not be carried out" in breakdown["seen"]


def test_slacks_check_of_the_address_gets_its_challenge_back(person: Person) -> None:
    check = {"type": "url_verification", "challenge": "3eZbrw1aB1", "token": "old"}

    assert person._deliver(json.dumps(check))["answer"] == {"challenge": "3eZbrw1aB1"}
    assert person._deliver(json.dumps(check | {"type": "app_rate_limited"}))["statusCode"] == 400
    person.secret = "another"
    assert person._deliver(json.dumps(check))["statusCode"] == 401
