"""Runs in DynamoDB: aggregates, newest log lines of pods, and the requests that started them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from stationmaster.aws import table
from stationmaster.aws.aggregate_store import AggregateStore
from stationmaster.aws.calls import AwsConditionFailed
from stationmaster.aws.rows import read_body
from stationmaster.aws.table import Item
from stationmaster.domain.aggregates import RUN
from stationmaster.domain.bus import LogTail
from stationmaster.domain.errors import RunNotFound, WriteConflict
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunEvent, RunRequested

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class RunStore(AggregateStore[RunId, Run, RunEvent]):
    def __init__(self, table_name: str, client: DynamoDBClient) -> None:
        super().__init__(RUN, table_name, client)

    def create(
        self,
        requested: RunRequested,
        *,
        dedup_key: str,
        dedup_until: datetime,
        also: Sequence[Any] = (),
    ) -> tuple[Run, bool]:
        """Write a new run, unless this request started one already.

        Args:
            requested: the first event; its run id is the same for each delivery of a request.
            dedup_key: equal for requests that mean the same run, e.g. the same words typed twice.
            dedup_until: after this moment the same words mean a new run.
            also: further items of the same transaction.

        Returns:
            The run, and whether this call created it.

        Raises:
            WriteConflict: a further item refused; look again.
        """
        dedup = table.earlier_request(dedup_key).attributes | {
            "run_id": {"S": requested.run_id},
            table.EXPIRES_AT: {"N": str(int(dedup_until.timestamp()))},
        }
        # Time to live deletes hours late, so expiry is part of the condition.
        unless_known = self._put(
            dedup,
            f"{table.IS_NEW} OR {table.EXPIRES_AT} < :now",
            {":now": {"N": str(int(requested.at.timestamp()))}},
        )
        try:
            return self.begin(requested, also=[unless_known, *also]), True
        except AwsConditionFailed:
            return self._duplicate_of(requested.run_id, dedup_key), False

    def find_request(self, run_id: RunId, *, dedup_key: str, at: datetime) -> Run | None:
        """Find the run that this request, or the same words a moment ago, has started already."""
        run = self.find(run_id)
        if run is not None:
            return run
        item = self._dedup_item(dedup_key)
        if item is None or int(item[table.EXPIRES_AT]["N"]) < int(at.timestamp()):
            return None
        return self.load(RunId(item["run_id"]["S"]))

    def list_recent(self, *, limit: int = 10, channel_id: str | None = None) -> list[Run]:
        """List the newest runs, newest first, of one channel or of all."""
        wanted = (
            run
            for run in self.list_newest()
            if channel_id is None or run.request.channel_id == channel_id
        )
        return [*islice(wanted, limit)]

    def save_log_tails(self, run_id: RunId, tails: Sequence[LogTail]) -> None:
        """Keep the newest lines of each pod, unless newer ones are kept already."""
        for tail in tails:
            at = {"S": tail.at.isoformat()}
            self._put_item(
                f"keeping log lines of run {run_id}",
                table.log_tail(self._kind, run_id, tail.pod).attributes
                | {"at": at, "body": {"S": tail.model_dump_json()}},
                ConditionExpression=f"{table.IS_NEW} OR #at < :at",
                ExpressionAttributeNames={"#at": "at"},
                ExpressionAttributeValues={":at": at},
            )

    def log_tails(self, run_id: RunId) -> list[LogTail]:
        """List the newest log lines of each pod, by pod name."""
        items = self._query(self._listing, **table.log_tails(self._kind, run_id).query)
        read = self._readable(items, lambda item: read_body(item, LogTail.model_validate_json))
        return [*read]

    def _duplicate_of(self, run_id: RunId, dedup_key: str) -> Run:
        """Find the run that an earlier delivery, or the same words a moment ago, has started."""
        try:
            return self.load(run_id)
        except RunNotFound:
            item = self._dedup_item(dedup_key)
            if item is None:
                raise WriteConflict(f"run {run_id} is being requested by others") from None
            return self.load(RunId(item["run_id"]["S"]))

    def _dedup_item(self, dedup_key: str) -> Item | None:
        return self._item("reading an earlier request", table.earlier_request(dedup_key))
