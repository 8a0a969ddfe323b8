"""Who may write to Slack now: one notifier at a time, by a lease in DynamoDB.

Two notifiers at once would share Slack's rate limits badly, and could post a line twice while one
of them has it claimed. A reserved concurrency of one would do the same, but an account with
Lambda's first quota (10 at a time) cannot reserve any.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from stationmaster.aws import table
from stationmaster.aws.rows import Rows

# Longer than the notifier's time limit: one that was killed writes nothing any more by then.
LEASE: Final = timedelta(seconds=130)


class SlackWriter(Rows):
    """The lease; `owner` is an invocation."""

    def take(self, owner: str, *, now: datetime) -> bool:
        """Take the lease, unless another invocation has it and may still be at work."""
        until = {"N": f"{(now + LEASE).timestamp():.3f}"}
        return self._put_item(
            "taking the lease of the writer to Slack",
            table.SLACK_WRITER.attributes | {"owner": {"S": owner}, "until": until},
            ConditionExpression=f"{table.IS_NEW} OR #until < :now",
            ExpressionAttributeNames={"#until": "until"},
            ExpressionAttributeValues={":now": {"N": f"{now.timestamp():.3f}"}},
        )

    def give_back(self, owner: str) -> None:
        """Release the lease, unless it is another's by now."""
        self._delete_item(
            "giving back the lease of the writer to Slack",
            table.SLACK_WRITER,
            ConditionExpression="#owner = :owner",
            ExpressionAttributeNames={"#owner": "owner"},
            ExpressionAttributeValues={":owner": {"S": owner}},
        )
