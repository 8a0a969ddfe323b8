"""Who may write to Slack now: one notifier at a time, by a lease in DynamoDB.

Two notifiers at once would share Slack's rate limits badly, and could post a line twice while one
of them has it claimed. A reserved concurrency of one would do the same, but an account with
Lambda's first quota (10 at a time) cannot reserve any.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from stationmaster.aws import table
from stationmaster.aws.calls import AwsConditionFailed, aws_call

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# Longer than the notifier's time limit: one that was killed writes nothing any more by then.
LEASE: Final = timedelta(seconds=130)


class SlackWriter:
    """The lease; `owner` is an invocation."""

    def __init__(self, table_name: str, client: DynamoDBClient) -> None:
        self._table = table_name
        self._client = client

    def take(self, owner: str, *, now: datetime) -> bool:
        """Take the lease, unless another invocation has it and may still be at work."""
        try:
            with aws_call("taking the lease of the writer to Slack"):
                self._client.put_item(
                    TableName=self._table,
                    Item=table.SLACK_WRITER.attributes
                    | {
                        "owner": {"S": owner},
                        "until": {"N": f"{(now + LEASE).timestamp():.3f}"},
                    },
                    ConditionExpression=f"{table.IS_NEW} OR #until < :now",
                    ExpressionAttributeNames={"#until": "until"},
                    ExpressionAttributeValues={":now": {"N": f"{now.timestamp():.3f}"}},
                )
        except AwsConditionFailed:
            return False
        return True

    def give_back(self, owner: str) -> None:
        """Release the lease, unless it is another's by now."""
        try:
            with aws_call("giving back the lease of the writer to Slack"):
                self._client.delete_item(
                    TableName=self._table,
                    Key=table.SLACK_WRITER.attributes,
                    ConditionExpression="#owner = :owner",
                    ExpressionAttributeNames={"#owner": "owner"},
                    ExpressionAttributeValues={":owner": {"S": owner}},
                )
        except AwsConditionFailed:
            return
