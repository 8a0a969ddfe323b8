"""What is given up, as AWS hands it to a queue: stream batches, and events for functions and rules.

It is sent through the endpoint's own SQS, in the words of the services. Sources: AWS Lambda
developer guide, "Retain discarded records for a DynamoDB event source" and "Capturing records of
Lambda asynchronous invocations"; Amazon EventBridge user guide, "Using dead-letter queues to
process undelivered events".
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
        self._send(destination, body, {})

    def function_event(
        self, function_arn: str, payload: bytes, *, answer: bytes, invoked: int
    ) -> None:
        """Send an event that a function failed with, where it has a destination."""
        destination = self._destination_of(function_arn)
        if not destination:
            return
        body = _body(f"{function_arn}:$LATEST", "RetriesExhausted", invoked) | {
            "requestPayload": json.loads(payload or b"null"),
            "responsePayload": _json_or_text(answer),
        }
        self._send(destination, body, {})

    def rule_event(self, delivery: Delivery, *, reason: str, invoked: int) -> None:
        """Send an event that never reached its target."""
        if delivery.dead_letter_arn:
            attributes = {
                "RULE_ARN": delivery.rule,
                "TARGET_ARN": delivery.target_arn,
                "ERROR_CODE": "NO_PERMISSIONS" if "not found" in reason else "SDK_CLIENT_ERROR",
                "ERROR_MESSAGE": reason[:200] or "unknown",
                "EXHAUSTED_RETRY_CONDITION": "MaximumRetryAttempts",
                "RETRY_ATTEMPTS": str(invoked - 1),
            }
            self._send(delivery.dead_letter_arn, delivery.payload.decode(), attributes)

    def _destination_of(self, function_arn: str) -> str:
        client = self._client("lambda")
        try:
            config = client.get_function_event_invoke_config(FunctionName=function_arn)
        except client.exceptions.ResourceNotFoundException:
            return ""
        return _destination(config.get("DestinationConfig"))

    def _send(self, queue_arn: str, body: Any, attributes: Mapping[str, str]) -> None:
        client = self._client("sqs")
        try:
            url = client.get_queue_url(QueueName=queue_arn.rpartition(":")[2])["QueueUrl"]
            client.send_message(
                QueueUrl=url,
                MessageBody=body if isinstance(body, str) else json.dumps(body),
                MessageAttributes={
                    name: {"DataType": "String", "StringValue": value}
                    for name, value in attributes.items()
                },
            )
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


def _json_or_text(payload: bytes) -> Any:
    try:
        return json.loads(payload or b"null")
    except ValueError:
        return payload.decode(errors="replace")
