"""What is given up, as Lambda hands it to a queue: batches of a stream, and events for functions.

It is sent through the endpoint's own SQS, in the words of the service. Source: AWS Lambda
developer guide, "Retain discarded records for a DynamoDB event source" and "Capturing records of
Lambda asynchronous invocations".
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from stationmaster.local.aws.event_delivery import Delivery

logger = logging.getLogger(__name__)

_VERSION = "1.0"


class DeadLetters:
    """Sends dead letters; `client` gives a client of the endpoint itself."""

    def __init__(self, *, client: Callable[[str], Any]) -> None:
        self._client = client

    def stream_batch(
        self, mapping: Any, records: Sequence[Mapping[str, Any]], *, condition: str, invoked: int
    ) -> None:
        """Send a batch of a stream: where its records are, without the records themselves."""
        destination = _destination(mapping.destination_config)
        if not destination:
            return
        numbers = [record["dynamodb"]["SequenceNumber"] for record in records]
        arrivals = [_arrival(record) for record in records]
        batch = {
            "shardId": "shardId-00000001541626099285-f35f62ef",
            "startSequenceNumber": numbers[0],
            "endSequenceNumber": numbers[-1],
            "approximateArrivalOfFirstRecord": arrivals[0],
            "approximateArrivalOfLastRecord": arrivals[-1],
            "batchSize": len(records),
            "streamArn": mapping.event_source_arn,
        }
        body = _body(mapping.function_arn, condition, invoked) | {"DDBStreamBatchInfo": batch}
        self._send(destination, body)

    def function_event(self, delivery: Delivery, reason: str, invoked: int) -> None:
        """Send an event that a function failed with, where it has a destination."""
        destination = self._destination_of(delivery.target_arn)
        if not destination:
            return
        body = _body(f"{delivery.target_arn}:$LATEST", "RetriesExhausted", invoked) | {
            "requestPayload": json.loads(delivery.payload),
            "responsePayload": _json_or_text(reason),
        }
        self._send(destination, body)

    def _destination_of(self, function_arn: str) -> str:
        client = self._client("lambda")
        try:
            config = client.get_function_event_invoke_config(FunctionName=function_arn)
        except client.exceptions.ResourceNotFoundException:
            return ""
        return _destination(config.get("DestinationConfig"))

    def _send(self, queue_arn: str, body: Mapping[str, Any]) -> None:
        client = self._client("sqs")
        try:
            url = client.get_queue_url(QueueName=queue_arn.rpartition(":")[2])["QueueUrl"]
            client.send_message(QueueUrl=url, MessageBody=json.dumps(body))
        except (BotoCoreError, ClientError):
            # The endpoint stops, or the queue is gone: AWS drops what it cannot send.
            logger.exception("dead letter was not sent", extra={"queue": queue_arn})


def _body(function_arn: str, condition: str, invoked: int) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "requestContext": {
            "requestId": str(uuid.uuid4()),
            "functionArn": function_arn,
            "condition": condition,
            "approximateInvokeCount": invoked,
        },
        "responseContext": {
            "statusCode": 200,
            "executedVersion": "$LATEST",
            "functionError": "Unhandled",
        },
    }


def _destination(config: Any) -> str:
    return str(((config or {}).get("OnFailure") or {}).get("Destination") or "")


def _arrival(record: Mapping[str, Any]) -> str:
    created = float(record["dynamodb"].get("ApproximateCreationDateTime") or 0)
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")


def _json_or_text(reason: str) -> Any:
    try:
        return json.loads(reason)
    except ValueError:
        return reason
