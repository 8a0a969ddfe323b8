"""What the local endpoint gives up goes to queues, as AWS words it: streams, rules, invocations."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from lambdas.registry import Rule
from stationmaster.aws.table import table_definition
from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    FunctionSpec,
    LocalAws,
    StreamSpec,
)
from stationmaster.local.aws.streams import StreamPumps
from tests.support.aws_fixtures import HANDLER, CapacityError, Script, until


@pytest.fixture(scope="module")
def deployed(aws: LocalAws) -> Deployment:
    return aws.deploy(
        DeploymentSpec(
            queues=["dead"],
            functions=[
                FunctionSpec(name=name, handler=HANDLER, on_failure="dead")
                for name in ("sink", "streamed")
            ],
            tables=[table_definition("runs")],
            streams=[
                StreamSpec(
                    table="runs",
                    function="streamed",
                    max_retry_attempts=1,
                    bisect_batch=True,
                    max_record_age_s=3600,
                    on_failure="dead",
                )
            ],
            buses=["events"],
            rules=[Rule("ours", "events", {"source": ["ours"]}, "sink")],
        )
    )


def letters(aws: LocalAws, count: int) -> list[Any]:
    """The messages of the queue, which are taken out of it."""
    client = aws.client("sqs")
    url = client.get_queue_url(QueueName="dead")["QueueUrl"]
    found: list[Any] = []

    def have_come() -> bool:
        answer = client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
        )
        for message in answer.get("Messages", []):
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            found.append(message)
        return len(found) >= count

    until(have_come)
    assert len(found) == count
    return found


def put(aws: LocalAws, *names: str) -> None:
    """One transaction, so that the records come in one batch where the function is busy."""
    aws.client("dynamodb").transact_write_items(
        TransactItems=[
            {"Put": {"TableName": "runs", "Item": {"PK": {"S": name}, "SK": {"S": "x"}}}}
            for name in names
        ]
    )


def put_event(aws: LocalAws, source: str) -> None:
    event = {"Source": source, "DetailType": "d", "Detail": '{"n": 1}', "EventBusName": "events"}
    aws.client("events").put_events(Entries=[event])


def keys(batch: Any) -> list[str]:
    return [record["dynamodb"]["Keys"]["PK"]["S"] for record in batch["Records"]]


def test_one_bad_record_is_isolated_and_sent_to_the_queue(aws: LocalAws, script: Script) -> None:
    def refuse(event: Any, _context: Any) -> None:
        if "bad" in keys(event):
            raise CapacityError("bad record")

    script.on("streamed", refuse)

    put(aws, "a", "b", "bad", "c", "d")

    (letter,) = letters(aws, 1)
    body = json.loads(letter["Body"])

    def good() -> list[str]:
        received = [keys(each) for each in script.received("streamed")]
        return sorted(key for each in received if "bad" not in each for key in each)

    # What comes after the bad record is delivered beside its letter.
    until(lambda: good() == ["a", "b", "c", "d"])
    assert body["DDBStreamBatchInfo"]["batchSize"] == 1
    assert body["requestContext"]["condition"] == "RetryAttemptsExhausted"
    batch, streams = body["DDBStreamBatchInfo"], aws.client("dynamodbstreams")
    shard = streams.get_shard_iterator(
        StreamArn=batch["streamArn"],
        ShardId=batch["shardId"],
        ShardIteratorType="AT_SEQUENCE_NUMBER",
        SequenceNumber=batch["startSequenceNumber"],
    )["ShardIterator"]
    records = streams.get_records(ShardIterator=shard)["Records"]
    assert records[0]["dynamodb"]["Keys"]["PK"]["S"] == "bad"


def test_event_that_a_function_fails_with_goes_to_its_destination(
    aws: LocalAws, script: Script
) -> None:
    script.fail("sink", times=4)

    put_event(aws, "ours")

    (letter,) = letters(aws, 1)
    body = json.loads(letter["Body"])
    assert body["requestPayload"]["detail"] == {"n": 1}
    assert body["requestContext"]["functionArn"].endswith(":function:sink:$LATEST")
    assert "no capacity" in json.dumps(body["responsePayload"])


# What a pump reads of an event source mapping.
MAPPING = SimpleNamespace(
    uuid="m",
    function_name="f",
    function_arn="arn:f",
    batch_size=1,
    enabled=True,
    max_retry_attempts=None,
    max_record_age=60,
    bisect_on_error=False,
)


def test_records_that_are_too_old_are_given_up_before_they_are_tried_again() -> None:
    given_up: list[Any] = []
    invoked: list[Any] = []

    def discard(_mapping: Any, records: list[Any], **how: Any) -> None:
        given_up.append((records, how))

    def invoke(_arn: str, payload: bytes) -> tuple[bytes, bool]:
        invoked.append(json.loads(payload))
        return b"null", False

    pumps = StreamPumps(invoke=invoke, discard=discard)
    old, new = (
        {"dynamodb": {"SequenceNumber": number, "ApproximateCreationDateTime": created}}
        for number, created in (("1", time.time() - 61), ("2", time.time()))
    )

    pumps.publish(mapping=MAPPING, record=old)
    pumps.publish(mapping=MAPPING, record=new)

    until(lambda: pumps.idle and invoked)
    pumps.stop()
    assert given_up == [([old], {"condition": "RecordAgeExceeded", "invoked": 0})]
    assert invoked == [{"Records": [new]}]
