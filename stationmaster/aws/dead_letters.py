"""SQS queues of dead letters: what AWS could not deliver, as Lambda, EventBridge and SQS word it.

Sources: AWS Lambda developer guide, "Capturing records of Lambda asynchronous invocations" and
"Retain discarded records for a DynamoDB event source"; Amazon EventBridge user guide, "Using
dead-letter queues to process undelivered events".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import AwsConflict, AwsNotFound, aws_call
from stationmaster.domain.errors import PermanentError

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient

# A letter is invisible to others for as long as one redrive may take.
HIDDEN_S: Final = 900
_MAX_RECORDS: Final = 1_000


class RecordsExpired(Exception):
    """The records of a stream are gone: DynamoDB keeps them for 24 hours."""


@dataclass(frozen=True)
class StreamRange:
    """The place of a discarded batch's records."""

    stream_arn: str
    shard_id: str
    first: str
    last: str


@dataclass(frozen=True)
class DeadLetter:
    """A message: for which function it was, and what that was to get."""

    queue: str
    message_id: str
    receipt: str
    sent_at: datetime
    function: str
    """The function's name or ARN; empty where the message is not understood."""
    reason: str
    payload: Any = None
    records: StreamRange | None = None


class DeadLetterQueue:
    """Reads one queue. A received letter is hidden until it is deleted or released."""

    def __init__(self, name: str, client: Any) -> None:
        self.name = name
        self._client = client
        try:
            with aws_call(f"looking for queue {name}"):
                self._url = client.get_queue_url(QueueName=name)["QueueUrl"]
        except (AwsNotFound, PermanentError) as exc:
            raise PermanentError(
                f"there is no queue {name} in this account and region; give the deployment's name "
                f"with --deployment ({exc})"
            ) from exc

    def receive(self, *, wait_s: int = 2) -> Iterator[DeadLetter]:
        """Yield every letter that nobody else has received."""
        while True:
            with aws_call(f"reading queue {self.name}"):
                answer = self._client.receive_message(
                    QueueUrl=self._url,
                    MaxNumberOfMessages=10,
                    VisibilityTimeout=HIDDEN_S,
                    WaitTimeSeconds=wait_s,
                    MessageSystemAttributeNames=["SentTimestamp"],
                    MessageAttributeNames=["All"],
                )
            messages = answer.get("Messages", [])
            if not messages:
                return
            for message in messages:
                yield self._letter(message)

    def delete(self, letter: DeadLetter) -> None:
        """Delete a letter that was sent again."""
        with aws_call(f"deleting a message of queue {self.name}"):
            self._client.delete_message(QueueUrl=self._url, ReceiptHandle=letter.receipt)

    def release(self, letter: DeadLetter) -> None:
        """Let others see a letter again, at once."""
        with aws_call(f"releasing a message of queue {self.name}"):
            self._client.change_message_visibility(
                QueueUrl=self._url, ReceiptHandle=letter.receipt, VisibilityTimeout=0
            )

    def _letter(self, message: Any) -> DeadLetter:
        attributes = {
            name: value.get("StringValue", "")
            for name, value in message.get("MessageAttributes", {}).items()
        }
        sent_ms = float(message.get("Attributes", {}).get("SentTimestamp", 0))
        function, reason, payload, records = _understood(message["Body"], attributes)
        return DeadLetter(
            queue=self.name,
            message_id=message["MessageId"],
            receipt=message["ReceiptHandle"],
            sent_at=datetime.fromtimestamp(sent_ms / 1000, UTC),
            function=function,
            reason=reason,
            payload=payload,
            records=records,
        )


def _understood(text: str, attributes: dict[str, str]) -> tuple[str, str, Any, StreamRange | None]:
    """Read function, reason, payload and records of a message; no function where it says none."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if attributes.get("TARGET_ARN"):  # of a rule or a schedule, which never reached the function
        reason = attributes.get("ERROR_MESSAGE") or attributes.get("ERROR_CODE", "")
        return attributes["TARGET_ARN"], reason, body if body is not None else text, None
    context = body.get("requestContext") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(context, dict):
        return "", f"it is not understood: {text[:200]}", None, None
    function = str(context.get("functionArn", "")).removesuffix(":$LATEST")
    condition = str(context.get("condition", ""))
    batch = body.get("DDBStreamBatchInfo")
    if isinstance(batch, dict):
        records = StreamRange(
            stream_arn=str(batch.get("streamArn")),
            shard_id=str(batch.get("shardId")),
            first=str(batch.get("startSequenceNumber")),
            last=str(batch.get("endSequenceNumber")),
        )
        return function, condition, None, records
    if "requestPayload" not in body:
        return "", f"it is not understood: {text[:200]}", None, None
    answer = body.get("responsePayload")
    error = answer.get("errorMessage") if isinstance(answer, dict) else answer
    return function, f"{condition}: {error}" if error else condition, body["requestPayload"], None


class Functions:
    """Invokes Lambda functions as AWS would have done it, and waits for each answer."""

    def __init__(self, client: LambdaClient) -> None:
        self._client = client

    def invoke(self, function: str, payload: Any) -> tuple[Any, str]:
        """Return the function's answer, and its error, "" for none.

        Raises:
            TransientError, PermanentError: it could not be invoked.
        """
        try:
            with aws_call(f"invoking {function}"):
                answer = self._client.invoke(
                    FunctionName=function, Payload=json.dumps(payload, default=str).encode()
                )
                text = answer["Payload"].read()
        except AwsNotFound as exc:
            return None, str(exc)
        value = json.loads(text or b"null")
        if not answer.get("FunctionError"):
            return value, ""
        message = value.get("errorMessage") if isinstance(value, dict) else value
        return None, str(message or answer["FunctionError"])

    def variables(self, function: str) -> dict[str, str]:
        """Read the environment that a function was deployed with.

        Raises:
            PermanentError: there is no such function.
        """
        try:
            with aws_call(f"looking at {function}"):
                answer = self._client.get_function_configuration(FunctionName=function)
        except AwsNotFound as exc:
            raise PermanentError(f"there is no function {function} ({exc})") from exc
        return dict(answer.get("Environment", {}).get("Variables", {}))


def read_records(client: Any, where: StreamRange) -> list[Any]:
    """Read the records of a discarded batch.

    Raises:
        RecordsExpired: the stream does not have them any more.
    """
    last = int(where.last)
    found: list[Any] = []
    codes = ("TrimmedDataAccessException", "ExpiredIteratorException")
    try:
        with aws_call("reading records of the stream", *codes):
            shard = client.get_shard_iterator(
                StreamArn=where.stream_arn,
                ShardId=where.shard_id,
                ShardIteratorType="AT_SEQUENCE_NUMBER",
                SequenceNumber=where.first,
            )["ShardIterator"]
            while shard and len(found) < _MAX_RECORDS:
                answer = client.get_records(ShardIterator=shard, Limit=_MAX_RECORDS)
                records = answer["Records"]
                found += [r for r in records if int(r["dynamodb"]["SequenceNumber"]) <= last]
                if not records or int(records[-1]["dynamodb"]["SequenceNumber"]) >= last:
                    break
                shard = answer.get("NextShardIterator")
    except (AwsConflict, AwsNotFound) as exc:
        raise RecordsExpired(str(exc)) from exc
    if not found:
        raise RecordsExpired("the stream has no record of these numbers")
    return found
