"""Runs and their events in DynamoDB: one table, one item collection for each run.

    PK            SK               holds
    RUN#<run id>  STATE            the run (body), its version, index keys
    RUN#<run id>  EVENT#<event id> one event (body) and its place in the order
    RUN#<run id>  TOKEN            the workflow's task token while it waits for the job
    RUN#<run id>  LOG#<pod>        the newest log lines of one pod
    DEDUP#<key>   REQUEST          which run a request started; expires

A run and the events that changed it are written in one transaction, conditional on the version that
was read and on every event being new. So an event counts once however often it is delivered, and
two writers cannot overwrite each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import AwsConditionFailed, aws_call
from stationmaster.domain.errors import IllegalTransition, RunNotFound, WriteConflict
from stationmaster.domain.events import EVENT, LogTail, RunEvent, RunRequested
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import Run, TeardownStatus, apply, start_run
from stationmaster.domain.run.consequences import consequences

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# A transaction takes 100 items; one is the run itself.
_EVENTS_PER_TRANSACTION: Final = 40
_WRITE_ATTEMPTS: Final = 8
_RUNS_INDEX: Final = "GSI1"
_OPEN_INDEX: Final = "GSI2"

Item = dict[str, Any]


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
        "GlobalSecondaryIndexes": [index(_RUNS_INDEX), index(_OPEN_INDEX)],
        "BillingMode": "PAY_PER_REQUEST",
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    }


def run_key(run_id: RunId) -> str:
    """Partition key of everything that belongs to one run."""
    return f"RUN#{run_id}"


class RunStore:
    """Reads and writes runs; the only place where a run's state changes."""

    def __init__(self, table_name: str, client: DynamoDBClient) -> None:
        self._table = table_name
        self._client = client

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
        run = start_run(requested).model_copy(update={"version": 1})
        dedup = {
            "PK": {"S": f"DEDUP#{dedup_key}"},
            "SK": {"S": "REQUEST"},
            "run_id": {"S": run.run_id},
            "expires_at": {"N": str(int(dedup_until.timestamp()))},
        }
        try:
            self._transact(
                [
                    {
                        "Put": {
                            "TableName": self._table,
                            "Item": dedup,
                            # Time to live deletes hours late, so expiry is part of the condition.
                            "ConditionExpression": "attribute_not_exists(PK) OR expires_at < :now",
                            "ExpressionAttributeValues": {
                                ":now": {"N": str(int(requested.at.timestamp()))}
                            },
                        }
                    },
                    self._put(_state_item(run), "attribute_not_exists(PK)"),
                    self._put(
                        _event_item(requested, version=1, index=0), "attribute_not_exists(PK)"
                    ),
                ]
            )
        except AwsConditionFailed:
            return self._duplicate_of(run.run_id, dedup_key), False
        return run, True

    def find_request(self, run_id: RunId, *, dedup_key: str, at: datetime) -> Run | None:
        """The run that this request, or the same words a moment ago, has started already."""
        try:
            return self.load(run_id)
        except RunNotFound:
            item = self._dedup_item(dedup_key)
        if item is None or int(item["expires_at"]["N"]) < int(at.timestamp()):
            return None
        return self.load(item["run_id"]["S"])

    def load(self, run_id: RunId) -> Run:
        """The run as last written, by a consistent read.

        Raises:
            RunNotFound: no such run.
        """
        with aws_call(f"reading run {run_id}"):
            answer = self._client.get_item(
                TableName=self._table,
                Key={"PK": {"S": run_key(run_id)}, "SK": {"S": "STATE"}},
                ConsistentRead=True,
            )
        item = answer.get("Item")
        if item is None:
            raise RunNotFound(f'no run is called "{run_id[:60]}"; see /train list')
        return Run.model_validate_json(item["body"]["S"])

    def record(self, run_id: RunId, events: Sequence[RunEvent]) -> Run:
        """Apply events that are not known yet, with their consequences, and return the run.

        Events that were recorded before are left out, so repeating a call changes nothing. A change
        of phase that no longer follows, because another writer ended the run meanwhile, is left out
        too; a run's end is final.

        Raises:
            RunNotFound, IllegalTransition: as load and apply.
            WriteConflict: other writers kept winning; worth retrying.
        """
        run = self.load(run_id)
        pending = list(dict.fromkeys(event.event_id for event in events))
        by_id = {event.event_id: event for event in events}
        for start in range(0, len(pending), _EVENTS_PER_TRANSACTION):
            chunk = [
                by_id[event_id] for event_id in pending[start : start + _EVENTS_PER_TRANSACTION]
            ]
            run = self._record_chunk(run, chunk)
        return run

    def list_recent(self, *, limit: int = 10, channel_id: str | None = None) -> list[Run]:
        """The newest runs, newest first, of one channel or of all."""
        found: list[Run] = []
        for item in self._query(
            IndexName=_RUNS_INDEX,
            KeyConditionExpression="GSI1PK = :runs",
            ExpressionAttributeValues={":runs": {"S": "RUNS"}},
            ScanIndexForward=False,
        ):
            run = Run.model_validate_json(item["body"]["S"])
            if channel_id is None or run.request.channel_id == channel_id:
                found.append(run)
            if len(found) >= limit:
                break
        return found

    def list_open(self) -> list[Run]:
        """Every run whose teardown has not been completed, oldest first."""
        return [
            Run.model_validate_json(item["body"]["S"])
            for item in self._query(
                IndexName=_OPEN_INDEX,
                KeyConditionExpression="GSI2PK = :open",
                ExpressionAttributeValues={":open": {"S": "OPEN"}},
            )
        ]

    def events(self, run_id: RunId) -> list[RunEvent]:
        """Every event of the run, in the order in which they were recorded."""
        items = self._query(
            KeyConditionExpression="PK = :pk AND begins_with(SK, :prefix)",
            ExpressionAttributeValues={
                ":pk": {"S": run_key(run_id)},
                ":prefix": {"S": "EVENT#"},
            },
            ConsistentRead=True,
        )
        ordered = sorted(items, key=lambda item: int(item["place"]["N"]))
        return [EVENT.validate_json(item["body"]["S"]) for item in ordered]

    def save_task_token(self, run_id: RunId, token: str) -> None:
        """Keep the token that resolves the workflow's wait; beside the run, never in an event."""
        with aws_call(f"keeping the task token of run {run_id}"):
            self._client.put_item(
                TableName=self._table,
                Item={
                    "PK": {"S": run_key(run_id)},
                    "SK": {"S": "TOKEN"},
                    "token": {"S": token},
                },
            )

    def load_task_token(self, run_id: RunId) -> str | None:
        """The token of a workflow that waits for its job, or None."""
        with aws_call(f"reading the task token of run {run_id}"):
            answer = self._client.get_item(
                TableName=self._table,
                Key={"PK": {"S": run_key(run_id)}, "SK": {"S": "TOKEN"}},
                ConsistentRead=True,
            )
        item = answer.get("Item")
        return None if item is None else item["token"]["S"]

    def save_log_tails(self, run_id: RunId, tails: Sequence[LogTail]) -> None:
        """Keep the newest lines of each pod, unless newer ones are kept already."""
        for tail in tails:
            try:
                with aws_call(f"keeping log lines of run {run_id}"):
                    self._client.put_item(
                        TableName=self._table,
                        Item={
                            "PK": {"S": run_key(run_id)},
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
            ExpressionAttributeValues={":pk": {"S": run_key(run_id)}, ":prefix": {"S": "LOG#"}},
        )
        return [LogTail.model_validate_json(item["body"]["S"]) for item in items]

    def _record_chunk(self, run: Run, events: Sequence[RunEvent]) -> Run:
        fresh = list(events)
        for attempt in range(_WRITE_ATTEMPTS):
            # Nearly always every event is new: look for known ones only when the first try fails.
            if attempt > 0:
                fresh = [e for e in events if not self._is_recorded(run.run_id, e.event_id)]
            try:
                changed, accepted = _apply_all(run, fresh)
            except IllegalTransition:
                if attempt > 0:
                    raise
                continue
            if not accepted:
                return run
            changed = changed.model_copy(update={"version": run.version + 1})
            try:
                self._transact(
                    [
                        self._put(
                            _state_item(changed),
                            "version = :version",
                            {":version": {"N": str(run.version)}},
                        ),
                        *(
                            self._put(
                                _event_item(event, version=changed.version, index=index),
                                "attribute_not_exists(PK)",
                            )
                            for index, event in enumerate(accepted)
                        ),
                    ]
                )
            except AwsConditionFailed:
                run = self.load(run.run_id)
                continue
            return changed
        raise WriteConflict(f"run {run.run_id} is being written by others; try again")

    def _is_recorded(self, run_id: RunId, event_id: str) -> bool:
        with aws_call(f"reading events of run {run_id}"):
            answer = self._client.get_item(
                TableName=self._table,
                Key={"PK": {"S": run_key(run_id)}, "SK": {"S": f"EVENT#{event_id}"}},
                ProjectionExpression="PK",
                ConsistentRead=True,
            )
        return "Item" in answer

    def _duplicate_of(self, run_id: RunId, dedup_key: str) -> Run:
        """The run that an earlier delivery, or the same words a moment ago, has started."""
        try:
            return self.load(run_id)
        except RunNotFound:
            item = self._dedup_item(dedup_key)
            if item is None:
                raise WriteConflict(f"run {run_id} is being requested by others") from None
            return self.load(item["run_id"]["S"])

    def _dedup_item(self, dedup_key: str) -> Item | None:
        with aws_call("reading an earlier request"):
            answer = self._client.get_item(
                TableName=self._table,
                Key={"PK": {"S": f"DEDUP#{dedup_key}"}, "SK": {"S": "REQUEST"}},
                ConsistentRead=True,
            )
        item: Item | None = answer.get("Item")
        return item

    def _put(
        self, item: Item, condition: str, values: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        put = {"TableName": self._table, "Item": item, "ConditionExpression": condition}
        if values is not None:
            put["ExpressionAttributeValues"] = values
        return {"Put": put}

    def _transact(self, writes: Sequence[Any]) -> None:
        with aws_call("writing a run"):
            self._client.transact_write_items(TransactItems=writes)

    def _query(self, **arguments: Any) -> Iterator[Item]:
        start: dict[str, Any] = {}
        while True:
            with aws_call("listing runs or events"):
                answer = self._client.query(TableName=self._table, **arguments, **start)
            yield from answer["Items"]
            last = answer.get("LastEvaluatedKey")
            if not last:
                return
            start = {"ExclusiveStartKey": last}


def _apply_all(run: Run, events: Sequence[RunEvent]) -> tuple[Run, list[RunEvent]]:
    """Apply events and what follows from them; a change of phase after the end is left out."""
    accepted: list[RunEvent] = []
    queue = list(events)
    while queue:
        event = queue.pop(0)
        try:
            run = apply(run, event)
        except IllegalTransition:
            if run.phase.is_terminal:
                continue
            raise
        accepted.append(event)
        queue = [*consequences(run, event), *queue]
    return run, accepted


def _state_item(run: Run) -> Item:
    item: Item = {
        "PK": {"S": run_key(run.run_id)},
        "SK": {"S": "STATE"},
        "version": {"N": str(run.version)},
        "phase": {"S": run.phase.value},
        "teardown": {"S": run.teardown.value},
        "body": {"S": run.model_dump_json()},
        "GSI1PK": {"S": "RUNS"},
        "GSI1SK": {"S": f"{run.requested_at.isoformat()}#{run.run_id}"},
    }
    if run.teardown is not TeardownStatus.COMPLETED:
        item["GSI2PK"] = {"S": "OPEN"}
        item["GSI2SK"] = {"S": f"{run.requested_at.isoformat()}#{run.run_id}"}
    return item


def _event_item(event: RunEvent, *, version: int, index: int) -> Item:
    return {
        "PK": {"S": run_key(event.run_id)},
        "SK": {"S": f"EVENT#{event.event_id}"},
        "type": {"S": event.type},
        "place": {"N": str(version * 1000 + index)},
        "body": {"S": event.model_dump_json()},
    }
