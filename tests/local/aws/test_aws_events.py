"""EventBridge rules, DynamoDB streams and schedules of the local endpoint."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lambdas.registry import Schedule
from stationmaster.local.aws import Deployment, LocalAws
from stationmaster.local.aws.clock import Ticker
from tests.support.aws_fixtures import Script, until


def put(aws: LocalAws, *numbers: int, source: str = "ours", bus: str = "events") -> None:
    """Put one event a number."""
    answer = aws.client("events").put_events(
        Entries=[
            {
                "Source": source,
                "DetailType": "run.requested",
                "Detail": json.dumps({"n": n}),
                "EventBusName": bus,
            }
            for n in numbers
        ]
    )
    assert answer["FailedEntryCount"] == 0


def numbers_of(script: Script) -> list[int]:
    """Return the numbers of the events that the sink got."""
    return [event["detail"]["n"] for event in script.received("sink") if "n" in event["detail"]]


# -- rules --------------------------------------------------------------------


def test_rule_drops_an_event_after_its_retries_and_goes_on(aws: LocalAws, script: Script) -> None:
    script.fail("sink", times=4)

    put(aws, 1, 2)

    until(lambda: 2 in numbers_of(script))
    assert numbers_of(script) == [1, 1, 1, 1, 2]


# -- stream -------------------------------------------------------------------


def records(script: Script) -> list[dict[str, Any]]:
    """Return the stream records that the function got, over all batches."""
    return [record for batch in script.received("streamed") for record in batch["Records"]]


def write(aws: LocalAws, pk: str, n: int) -> None:
    """Put an item."""
    aws.client("dynamodb").put_item(
        TableName="runs", Item={"PK": {"S": pk}, "SK": {"S": "x"}, "n": {"N": str(n)}}
    )


def test_stream_carries_each_change_with_both_images(aws: LocalAws, script: Script) -> None:
    write(aws, "images", 1)
    write(aws, "images", 2)
    write(aws, "images", 2)  # changes nothing, so it leaves no record
    aws.client("dynamodb").delete_item(
        TableName="runs", Key={"PK": {"S": "images"}, "SK": {"S": "x"}}
    )

    until(lambda: len(records(script)) == 3)
    insert, modify, remove = records(script)
    assert [r["eventName"] for r in (insert, modify, remove)] == ["INSERT", "MODIFY", "REMOVE"]
    assert insert["dynamodb"]["Keys"] == {"PK": {"S": "images"}, "SK": {"S": "x"}}
    assert "OldImage" not in insert["dynamodb"]
    assert modify["dynamodb"]["OldImage"]["n"] == {"N": "1"}
    assert modify["dynamodb"]["NewImage"]["n"] == {"N": "2"}
    assert "NewImage" not in remove["dynamodb"]
    assert insert["awsRegion"] == "us-west-2"
    assert insert["eventSourceARN"].startswith(
        "arn:aws:dynamodb:us-west-2:123456789012:table/runs/stream/"
    )


def test_stream_retries_the_same_batch_in_order_until_success(
    aws: LocalAws, script: Script
) -> None:
    script.fail("streamed", times=3)

    for n in range(5):
        write(aws, "retry", n)

    until(lambda: len(script.received("streamed")) > 3 and aws.settle())
    batches = script.received("streamed")
    assert batches[0] == batches[1] == batches[2] == batches[3]
    delivered = [
        int(record["dynamodb"]["NewImage"]["n"]["N"])
        for batch in batches[3:]
        for record in batch["Records"]
    ]
    assert delivered == [0, 1, 2, 3, 4]


def test_stream_batches_what_waits_up_to_a_hundred(aws: LocalAws, script: Script) -> None:
    entered, release = threading.Event(), threading.Event()

    def blocked(event: Any, context: Any) -> None:
        entered.set()
        release.wait(20)

    script.on("streamed", blocked)
    write(aws, "batch", 0)
    entered.wait(10)

    for n in range(1, 121):
        write(aws, "batch", n)
    release.set()

    until(lambda: len(records(script)) == 121)
    assert [len(batch["Records"]) for batch in script.received("streamed")] == [1, 100, 20]
    sequences = [int(record["dynamodb"]["SequenceNumber"]) for record in records(script)]
    assert sequences == sorted(set(sequences))


def test_item_is_read_as_it_was_written_with_each_type_of_attribute(
    aws: LocalAws, script: Script
) -> None:
    client, key = aws.client("dynamodb"), {"PK": {"S": "types"}, "SK": {"S": "x"}}
    lists: dict[str, Any] = {"L": [{"S": ""}, {"N": "1.50"}, {"M": {"a": {"BOOL": False}}}]}
    values: dict[str, Any] = {
        "text": {"S": 'a "quoted" ü'},
        "empty": {"S": ""},
        "number": {"N": "-1e3"},
        "true": {"BOOL": True},
        "null": {"NULL": True},
        "list": lists,
        "map": {"M": lists["L"][2]["M"]},
        "texts": {"SS": ["a", "b"]},
        "numbers": {"NS": ["1", "2"]},
    }
    client.put_item(TableName="runs", Item=key | values)

    found = client.get_item(TableName="runs", Key=key)["Item"]
    (queried,) = client.query(
        TableName="runs",
        KeyConditionExpression="PK = :pk",
        ExpressionAttributeValues={":pk": key["PK"]},
    )["Items"]

    assert found == queried == key | values


def test_stream_has_nothing_of_a_transaction_that_failed(aws: LocalAws, script: Script) -> None:
    write(aws, "kept", 1)
    client, table = aws.client("dynamodb"), {"TableName": "runs"}
    kept, created, absent = ({"PK": {"S": name}, "SK": {"S": "x"}} for name in ("kept", "b", "c"))
    set_n = {"UpdateExpression": "SET n = :n", "ExpressionAttributeValues": {":n": {"N": "2"}}}
    exists = {"ConditionExpression": "attribute_exists(PK)"}

    with pytest.raises(client.exceptions.TransactionCanceledException):
        client.transact_write_items(
            TransactItems=[
                {"Put": {**table, "Item": created}},
                {"Update": {**table, "Key": kept, **set_n}},
                {"ConditionCheck": {**table, "Key": absent, **exists}},
            ]
        )
    write(aws, "after", 1)

    until(lambda: len(records(script)) >= 2)
    assert aws.settle()
    assert [r["dynamodb"]["Keys"]["PK"]["S"] for r in records(script)] == ["kept", "after"]
    assert client.get_item(**table, Key=kept)["Item"]["n"] == {"N": "1"}
    assert "Item" not in client.get_item(**table, Key=created)


# -- schedules ----------------------------------------------------------------


def test_schedule_goes_on_after_a_run_that_failed() -> None:
    got: list[tuple[str, bytes]] = []

    def invoke(name: str, payload: bytes) -> tuple[bytes, bool]:
        got.append((name, payload))
        return b"null", True

    ticker = Ticker(speed=3600, invoke=invoke)
    ticker.add(Schedule(name="reaper", rate_s=900, function="reaper"))

    until(lambda: len(got) >= 2)
    ticker.stop()

    assert got[:2] == [("reaper", b"{}")] * 2


def in_seconds(seconds: float) -> str:
    """The expression of a one-time schedule; it knows whole seconds only."""
    return f"at({datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S})"


def one_time(deployed: Deployment, name: str, expression: str, word: str) -> dict[str, Any]:
    """What creates or updates a schedule that sends `word` to the worker, once."""
    return {
        "Name": name,
        "GroupName": "clocks",
        "ScheduleExpression": expression,
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {
            "Arn": deployed.function_arns["worker"],
            "RoleArn": deployed.role_arns["local-execution"],
            "Input": json.dumps({"word": word}),
        },
    }


@pytest.fixture
def scheduler(aws: LocalAws) -> Any:
    client = aws.client("scheduler")
    client.create_schedule_group(Name="clocks")
    return client


def test_one_time_schedule_that_is_set_anew_or_deleted_does_not_fire_as_before(
    scheduler: Any, script: Script, deployed: Deployment
) -> None:
    for name in ("moved", "gone"):
        scheduler.create_schedule(**one_time(deployed, name, in_seconds(5), f"{name} first"))
    scheduler.update_schedule(**one_time(deployed, "moved", in_seconds(6), "moved second"))
    scheduler.delete_schedule(GroupName="clocks", Name="gone")

    until(lambda: {"word": "moved second"} in script.received("worker"))

    words = [each.get("word", "") for each in script.received("worker")]
    assert [word for word in words if word.startswith(("moved", "gone"))] == ["moved second"]
    assert scheduler.list_schedules(GroupName="clocks")["Schedules"] == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"GroupName": "others"}, "ResourceNotFoundException"),
        ({"ScheduleExpression": "at(tomorrow)"}, "ValidationException"),
        ({"ScheduleExpression": "rate(1 hour)"}, "ValidationException"),
    ],
)
def test_one_time_schedule_that_cannot_be_is_refused(
    scheduler: Any, deployed: Deployment, change: dict[str, str], code: str
) -> None:
    wanted = one_time(deployed, "never", in_seconds(60), "never") | change

    with pytest.raises(ClientError, match=code):
        scheduler.create_schedule(**wanted)
