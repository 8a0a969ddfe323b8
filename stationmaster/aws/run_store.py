"""Runs in DynamoDB: what `aggregate_store` keeps of every aggregate, and what only runs have.

PK            SK         holds
RUN#<run id>  LOG#<pod>  the newest log lines of one pod
DEDUP#<key>   REQUEST    which run a request started; expires
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from stationmaster.aws.aggregate_store import ALL_INDEX, OPEN_INDEX, AggregateStore, Item
from stationmaster.aws.calls import AwsConditionFailed, aws_call
from stationmaster.domain.aggregates import RUN
from stationmaster.domain.errors import RunNotFound, WriteConflict
from stationmaster.domain.events import LogTail, RunEvent, RunRequested
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import Run

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


def table_definition(table_name: str) -> dict[str, Any]:
    """Arguments of CreateTable; the data stack declares the same (held together by a test)."""
    string = [
        {"AttributeName": name, "AttributeType": "S"}
        for name in ("PK", "SK", "GSI1PK", "GSI1SK", "GSI2PK", "GSI2SK")
    ]

    def index(name: str) -> dict[str, Any]:
        return {
            "IndexName": name,
            "KeySchema": [
                {"AttributeName": f"{name}PK", "KeyType": "HASH"},
                {"AttributeName": f"{name}SK", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        }

    return {
        "TableName": table_name,
        "AttributeDefinitions": string,
        "KeySchema": [
            {"AttributeName": "PK", "KeyType": "HASH"},
            {"AttributeName": "SK", "KeyType": "RANGE"},
        ],
        "GlobalSecondaryIndexes": [index(ALL_INDEX), index(OPEN_INDEX)],
        "BillingMode": "PAY_PER_REQUEST",
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    }


class RunStore(AggregateStore[RunId, Run, RunEvent]):
    """Reads and writes runs."""

    def __init__(self, table_name: str, client: DynamoDBClient) -> None:
        super().__init__(RUN, table_name, client)

    def create(
        self, requested: RunRequested, *, dedup_key: str, dedup_until: datetime
    ) -> tuple[Run, bool]:
        """Write a new run, unless this request started one already.

        Args:
            requested: the first event; its run id is the same for each delivery of a request.
            dedup_key: equal for requests that mean the same run, e.g. the same words typed twice.
            dedup_until: after this moment the same words mean a new run.

        Returns:
            The run, and whether this call created it.
        """
        dedup = {
            "PK": {"S": f"DEDUP#{dedup_key}"},
            "SK": {"S": "REQUEST"},
            "run_id": {"S": requested.run_id},
            "expires_at": {"N": str(int(dedup_until.timestamp()))},
        }
        # Time to live deletes hours late, so expiry is part of the condition.
        unless_known = self._put(
            dedup,
            "attribute_not_exists(PK) OR expires_at < :now",
            {":now": {"N": str(int(requested.at.timestamp()))}},
        )
        try:
            return self.begin(requested, also=[unless_known]), True
        except AwsConditionFailed:
            return self._duplicate_of(requested.run_id, dedup_key), False

    def find_request(self, run_id: RunId, *, dedup_key: str, at: datetime) -> Run | None:
        """The run that this request, or the same words a moment ago, has started already."""
        run = self.find(run_id)
        if run is not None:
            return run
        item = self._dedup_item(dedup_key)
        if item is None or int(item["expires_at"]["N"]) < int(at.timestamp()):
            return None
        return self.load(RunId(item["run_id"]["S"]))

    def list_recent(self, *, limit: int = 10, channel_id: str | None = None) -> list[Run]:
        """The newest runs, newest first, of one channel or of all."""
        wanted = (
            run
            for run in self.list_newest()
            if channel_id is None or run.request.channel_id == channel_id
        )
        return [*islice(wanted, limit)]

    def save_log_tails(self, run_id: RunId, tails: Sequence[LogTail]) -> None:
        """Keep the newest lines of each pod, unless newer ones are kept already."""
        for tail in tails:
            try:
                with aws_call(f"keeping log lines of run {run_id}"):
                    self._client.put_item(
                        TableName=self._table,
                        Item={
                            "PK": {"S": self._partition(run_id)},
                            "SK": {"S": f"LOG#{tail.pod}"},
                            "at": {"S": tail.at.isoformat()},
                            "body": {"S": tail.model_dump_json()},
                        },
                        ConditionExpression="attribute_not_exists(PK) OR #at < :at",
                        ExpressionAttributeNames={"#at": "at"},
                        ExpressionAttributeValues={":at": {"S": tail.at.isoformat()}},
                    )
            except AwsConditionFailed:
                continue  # newer lines are kept already

    def log_tails(self, run_id: RunId) -> list[LogTail]:
        """The newest log lines of each pod, by pod name."""
        items = self._query(
            KeyConditionExpression="PK = :pk AND begins_with(SK, :prefix)",
            ExpressionAttributeValues={
                ":pk": {"S": self._partition(run_id)},
                ":prefix": {"S": "LOG#"},
            },
        )
        return [LogTail.model_validate_json(item["body"]["S"]) for item in items]

    def _duplicate_of(self, run_id: RunId, dedup_key: str) -> Run:
        """The run that an earlier delivery, or the same words a moment ago, has started."""
        try:
            return self.load(run_id)
        except RunNotFound:
            item = self._dedup_item(dedup_key)
            if item is None:
                raise WriteConflict(f"run {run_id} is being requested by others") from None
            return self.load(RunId(item["run_id"]["S"]))

    def _dedup_item(self, dedup_key: str) -> Item | None:
        with aws_call("reading an earlier request"):
            answer = self._client.get_item(
                TableName=self._table,
                Key={"PK": {"S": f"DEDUP#{dedup_key}"}, "SK": {"S": "REQUEST"}},
                ConsistentRead=True,
            )
        item: Item | None = answer.get("Item")
        return item
