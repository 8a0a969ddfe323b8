"""What was posted in Slack, kept in DynamoDB, and the budgets of edits and posts.

It is kept beside the run or the cluster and never in it: losing all of it would repeat messages and
change nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, NewType

from pydantic import Field

from stationmaster.aws import table
from stationmaster.aws.calls import AwsConditionFailed, aws_call
from stationmaster.aws.rows import MOST_AT_ONCE, Rows, at_version, read_body
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.errors import Unreadable, WriteConflict
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId

_KEPT: Final = timedelta(days=90)

# Slack takes 50 chat.update calls a minute. A full bucket and a minute of refilling together are
# never more than that: 20 + 30. Seventeen live cards can be refreshed at once. Source: tier 3 of https://api.slack.com/docs/rate-limits.
BUCKET_CAPACITY: Final = 20.0
BUCKET_REFILL_PER_S: Final = 30 / 60
# "1 message per second per channel, short bursts". Source: as above.
POST_BURST: Final = 5.0
POSTS_PER_S: Final = 1.0
_BUCKET_ATTEMPTS: Final = 5
_READING: Final = "reading what was posted in Slack"
_KEEPING: Final = "keeping what was posted in Slack"


# A run's own cluster has the run's id, and each may have a card.
Owner = NewType("Owner", str)
"""The run, the cluster or the answered message that a delivery is about."""


# Longer than the notifier's time limit: one that was killed writes nothing any more by then.
LEASE: Final = timedelta(seconds=130)


def of_run(run_id: RunId) -> Owner:
    return Owner(run_id)


def of_cluster(cluster_id: ClusterId) -> Owner:
    return Owner(f"cluster/{cluster_id}")


class Delivery(Frozen):
    """What was posted of a run or a cluster; version 0 means nothing yet."""

    owner: Owner
    version: int = 0
    channel_id: str = ""
    card_ts: str | None = None
    card_claimed_at: datetime | None = None
    """Since when a card is being posted; it may be there already."""
    lost_channel_id: str = ""
    """Where the card was, when it had to move."""
    lost_code: str = ""
    """Why, in Slack's words."""
    card_digest: str = ""
    card_milestone: str = ""
    card_updated_at: datetime | None = None
    thread_at: datetime | None = None
    """When lines were last posted."""
    thread_since: datetime | None = None
    """Events from then on may have no line yet; None: all have one."""
    chart_posted: bool = False
    receipt_posted: TeardownStatus | None = None


class Picture(Frozen):
    """The curves of several runs, which somebody wants in one picture, or the report of a run."""

    picture_id: str
    """The same for each delivery of a request."""
    channel_id: str
    user_id: str
    run_ids: Annotated[tuple[RunId, ...], Field(min_length=1, max_length=6)]
    is_report: bool = False
    """Whether it is the page with all that is known of the first of them."""


class DeliveryStore(Rows):
    """Reads and writes deliveries: for the bot the first one, for the notifier all that follow."""

    def load(self, owner: Owner) -> Delivery:
        """Load what was posted of a run or a cluster, by a consistent read.

        Raises:
            Unreadable: this version did not write it.
        """
        item = self._item(_READING, table.delivery(owner))
        if item is None:
            return Delivery(owner=owner)
        return read_body(item, Delivery.model_validate_json)

    def load_each(self, owners: Iterable[Owner]) -> dict[Owner, Delivery]:
        """Read what was posted of each, in few calls; leave out those that cannot be read."""
        wanted = {table.delivery(owner): owner for owner in owners}
        found = {owner: Delivery(owner=owner) for owner in wanted.values()}
        for key, item in self._items(wanted):
            try:
                found[wanted[key]] = read_body(item, Delivery.model_validate_json)
            except Unreadable:
                del found[wanted[key]]
        return found

    def save(self, delivery: Delivery, *, now: datetime) -> Delivery:
        """Write a delivery over the version that was read, and return it with its new version.

        Raises:
            WriteConflict: another notifier wrote meanwhile; the batch is to be tried again.
        """
        saved = delivery.model_copy(update={"version": delivery.version + 1})
        item = table.delivery(delivery.owner).attributes | {
            "version": {"N": str(saved.version)},
            "body": {"S": saved.model_dump_json()},
            table.EXPIRES_AT: _expiry(now),
        }
        if not self._put_item(_KEEPING, item, **at_version(delivery.version)):
            raise WriteConflict(
                f"delivery of {delivery.owner} is not at version {delivery.version} any more"
            )
        return saved

    def claim(
        self, owner: Owner, keys: Iterable[str], *, now: datetime, kept: timedelta = _KEPT
    ) -> dict[str, datetime | None]:
        """Claim what is about to be posted; returns what is not known to be posted.

        A key with a time was claimed then and never confirmed: only Slack knows whether its message
        is there. A confirmed key is left out.

        Raises:
            WriteConflict: another notifier claims the same at this moment.
        """
        wanted = {table.delivery_claim(owner, key): key for key in keys}
        claims: dict[str, datetime | None] = dict.fromkeys(wanted.values())
        more = {"claimed_at": {"S": now.isoformat()}, table.EXPIRES_AT: _expiry(now, kept)}
        for key, item in self._items(wanted):
            name = wanted.pop(key)
            if "claimed_at" in item:
                claims[name] = datetime.fromisoformat(item["claimed_at"]["S"])
            else:  # it is confirmed
                del claims[name]
        fresh = [key.attributes | more for key in wanted]
        if not self._put_all(fresh, ConditionExpression=table.IS_NEW):
            raise WriteConflict(f"another notifier posts of {owner} at this moment; try again")
        return claims

    def confirm(
        self, owner: Owner, keys: Iterable[str], *, now: datetime, kept: timedelta = _KEPT
    ) -> None:
        """Record that what was claimed is in Slack."""
        expiry = {table.EXPIRES_AT: _expiry(now, kept)}
        self._put_all([table.delivery_claim(owner, key).attributes | expiry for key in keys])

    def take_update_token(self, now: datetime, *, team: str = "", reserve: int = 0) -> float:
        """Take one token for a chat.update in a workspace; 0.0 means go, else the seconds to wait.

        Args:
            reserve: tokens that must stay in the bucket; edits that can wait leave some for ends of
                runs. Nothing is written when no token is taken.
        """
        key = table.slack_updates(team)
        return self._take(key, now, reserve, BUCKET_CAPACITY, BUCKET_REFILL_PER_S)

    def take_post_token(self, channel: str, now: datetime, *, reserve: int = 0) -> float:
        """Take one token for a chat.postMessage in a channel; as take_update_token."""
        return self._take(table.slack_posts(channel), now, reserve, POST_BURST, POSTS_PER_S)

    def bring_batch(self, now: datetime) -> None:
        """Write an item, so that the notifier is soon invoked again for what it holds back."""
        item = table.SLACK_HELD.attributes | {"at": {"N": f"{now.timestamp():.6f}"}}
        self._put_item("asking for the next batch", item)

    def ask_for_log(self, run_id: RunId, *, now: datetime) -> None:
        """Have the notifier upload the log of a run into its thread."""
        more = {"at": {"S": now.isoformat()}, table.EXPIRES_AT: _expiry(now)}
        item = table.log_file(run_id).attributes | more
        self._put_item(f"asking for the log of run {run_id}", item)

    def ask_for_picture(self, picture: Picture, *, now: datetime) -> None:
        """Have the notifier post the curves of several runs into a channel."""
        more = {"at": {"S": now.isoformat()}, table.EXPIRES_AT: _expiry(now)}
        body = {"body": {"S": picture.model_dump_json()}}
        item = table.picture(picture.picture_id).attributes | more | body
        self._put_item("asking for a picture of several runs", item)

    def _take(
        self, key: table.Key, now: datetime, reserve: int, capacity: float, per_s: float
    ) -> float:
        at = now.timestamp()
        for _ in range(_BUCKET_ATTEMPTS):
            item = self._item(_READING, key)
            version, tokens = 0, capacity
            if item is not None:
                version = int(item["version"]["N"])
                elapsed_s = max(0.0, at - float(item["at"]["N"]))
                tokens = min(capacity, float(item["tokens"]["N"]) + elapsed_s * per_s)
                at = max(at, float(item["at"]["N"]))  # clocks of two machines may disagree
            missing = 1 + reserve - tokens
            if missing > 0:
                return missing / per_s
            bucket = key.attributes | {
                "tokens": {"N": f"{tokens - 1:.6f}"},
                "at": {"N": f"{at:.6f}"},
                "version": {"N": str(version + 1)},
                table.EXPIRES_AT: _expiry(now),
            }
            if self._put_item(_KEEPING, bucket, **at_version(version)):
                return 0.0
        raise WriteConflict("the budget of Slack is being taken from by others; try again")

    def _put_all(self, items: Sequence[dict[str, Any]], **condition: Any) -> bool:
        """Put all items, a hundred at once; False when the condition is not met for one."""
        puts: Any = [
            {"Put": {"TableName": self._table, "Item": item, **condition}} for item in items
        ]
        try:
            for start in range(0, len(puts), MOST_AT_ONCE):
                with aws_call(_KEEPING):
                    self._client.transact_write_items(
                        TransactItems=puts[start : start + MOST_AT_ONCE]
                    )
        except AwsConditionFailed:
            return False
        return True


def _expiry(now: datetime, kept: timedelta = _KEPT) -> dict[str, str]:
    return {"N": str(int((now + kept).timestamp()))}


class SlackWriter(Rows):
    """Who may write to Slack now: one notifier at a time, by a lease; `owner` is an invocation.

    Two at once would share Slack's rate limits badly, and could post a line twice while one of them
    has it claimed. A reserved concurrency of one would do the same, but an account with Lambda's
    first quota (10 at a time) cannot reserve any.
    """

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
