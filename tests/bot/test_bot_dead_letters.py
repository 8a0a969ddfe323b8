"""The notifier on what nobody can read: it becomes a dead letter, the rest is posted."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest
from bot_world import REGION, Story, TableStream

from bot import notifier_handler
from bot.notifier import Notifier
from bot.stream import read_batch
from bot.subjects import RunSubject
from stationmaster.aws import table
from stationmaster.services import Services

OTHER = "tiny-llama-ffffffff"


def write(key: table.Key, **attributes: str) -> None:
    """Another version, or a person, writes an item."""
    values = {name: {"S": value} for name, value in attributes.items()}
    boto3.client("dynamodb", REGION).put_item(TableName="runs", Item=key.attributes | values)


def kept(services: Services) -> list[Any]:
    return [*services.set_aside.list()]


UNREADABLE: list[Any] = [
    None,
    "record",
    {},
    {"eventName": "INSERT"},
    {"eventName": "INSERT", "dynamodb": {"Keys": "PK"}},
    {"eventName": 3, "dynamodb": {"Keys": {"PK": {"S": "RUN#x"}, "SK": {"S": "EVENT#x"}}}},
    {
        "eventName": "INSERT",
        "dynamodb": {
            "Keys": {"PK": {"S": "RUN#x"}, "SK": {"S": "EVENT#x"}},
            "NewImage": {"body": {"S": '{"type": "gpu.melted"}'}},
        },
    },
    {
        "eventName": "INSERT",
        "dynamodb": {
            "Keys": {"PK": {"S": "CLUSTER#x"}, "SK": {"S": "EVENT#x"}},
            "NewImage": {"body": {"N": "1"}},
        },
    },
]


@pytest.mark.parametrize("unreadable", UNREADABLE, ids=lambda record: json.dumps(record)[:60])
def test_record_that_cannot_be_read_is_set_aside_and_holds_up_nothing(
    stream: TableStream, story: Story, slack: Any, services: Services, unreadable: Any
) -> None:
    story.begin()
    batch = stream.next_batch()

    answer = notifier_handler.handler({"Records": [unreadable, *batch["Records"]]}, None)

    (entry,) = kept(services)
    assert answer == {"set_aside": 1}
    assert story.run_id in slack.card.seen
    assert (entry.function, json.loads(entry.payload)) == ("notifier", {"Records": [unreadable]})


@pytest.mark.parametrize(
    "keys", [{}, {"PK": {"N": "1"}, "SK": {"S": "STATE"}}, {"PK": "RUN#x", "SK": "STATE"}]
)
def test_keys_of_no_run_are_left_out(keys: dict[str, Any]) -> None:
    change = {"Keys": keys, "NewImage": {"body": {"S": "{}"}}}

    batch = read_batch({"Records": [{"eventName": "INSERT", "dynamodb": change}]})

    assert (batch.runs, batch.unread) == ({}, ())


@pytest.mark.parametrize("damaged", ["run", "cluster", "delivery"])
def test_item_that_cannot_be_read_keeps_no_other_run_waiting(
    stream: TableStream, story: Story, services: Services, clock: Any, slack: Any, damaged: str
) -> None:
    story.reach_running()
    Story(services, clock, run_id=OTHER).reach_running()
    keys = {
        "run": table.state("RUN", story.run_id),
        "cluster": table.state("CLUSTER", story.run_id),
        "delivery": table.delivery(story.run_id),
    }
    write(keys[damaged], body='{"version": "of tomorrow"}')

    answer = notifier_handler.handler(stream.next_batch(), None)

    assert answer == {"set_aside": 1}
    assert any(OTHER in call.seen for call in slack.of("chat.postMessage"))
    assert story.run_id in kept(services)[0].what


def test_refresh_goes_past_an_item_that_cannot_be_read(
    notifier: Notifier, story: Story, services: Services, clock: Any, slack: Any
) -> None:
    story.reach_running()
    Story(services, clock, run_id=OTHER).reach_running()
    write(table.state("RUN", story.run_id), body="{")

    notifier.refresh()

    assert OTHER in slack.card.seen


def test_card_that_breaks_holds_up_no_other_and_its_records_are_set_aside(
    notifier: Notifier,
    stream: TableStream,
    story: Story,
    services: Services,
    clock: Any,
    slack: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story.reach_running()
    Story(services, clock, run_id=OTHER).reach_running()
    card = RunSubject.card

    def breaking(self: RunSubject, **arguments: Any) -> Any:
        if self.view.run.run_id == story.run_id:
            raise KeyError("a bug")
        return card(self, **arguments)

    monkeypatch.setattr(RunSubject, "card", breaking)

    num_kept = notifier.notify(read_batch(stream.next_batch()))

    (entry,) = kept(services)
    records = json.loads(entry.payload)["Records"]
    assert num_kept == 1
    assert OTHER in slack.card.seen
    assert "KeyError" in entry.reason
    assert {record["dynamodb"]["Keys"]["PK"]["S"] for record in records} == {f"RUN#{story.run_id}"}


def test_records_that_were_set_aside_are_posted_when_they_are_sent_again(
    stream: TableStream, story: Story, services: Services, slack: Any
) -> None:
    story.reach_running()
    good = services.runs.load(story.run_id).model_dump_json()
    write(table.state("RUN", story.run_id), body="{")
    notifier_handler.handler(stream.next_batch(), None)
    write(table.state("RUN", story.run_id), body=good)

    answer = notifier_handler.handler(json.loads(kept(services)[0].payload), None)

    assert answer == {"set_aside": 0}
    assert story.run_id in slack.card.seen
