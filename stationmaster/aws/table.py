"""The DynamoDB table: its shape and its keys. One table, one item collection for each aggregate.

    PK                 SK               holds
    RUN#<run id>       STATE            the state (body), its version, index keys
    RUN#<run id>       EVENT#<event id> one event (body) and its place in the order
    RUN#<run id>       STEP#<event id>  the same, of a kind of which there may be a million
    RUN#<run id>       TOKEN#<purpose>  a workflow's task token while it waits for something
    CLUSTER#<id>       as of a run
    RUN#<run id>       LOG#<pod>        the newest log lines of one pod
    DEDUP#<key>        REQUEST          which run a request started; expires
    NAME#<name>        CLUSTER          which cluster has the name, or had it last
    DELIVERY#<owner>   STATE            the card's place, what it last showed, what was posted
    DELIVERY#<owner>   EVENT#<key>      a claim: this is being posted (since), or is posted
    GUARD              STARTS           what was started lately, where starts are limited
    ORPHANS#<id>       STATE            what is left of a cluster, and since when it is seen
    LOG_FILE#<run id>  STATE            when somebody last asked for a log as a file; expires
    PICTURE#<id>       STATE            the runs that somebody wants in one picture; expires
    AUDIT#<channel id> ENTRY#<number>   what somebody did in a channel; expires
    PERSON#<user id>   SETTINGS         what a person has chosen for themselves
    CHANNEL#<id>       SETTINGS         the budget that somebody has set for a channel's months
    SLACK              UPDATE_BUCKET    tokens for chat.update, shared by all cards
    SLACK              POSTS#<channel>  tokens for chat.postMessage in one channel; expires
    SLACK              HELD             written when posts had to wait: brings the next batch
    SET_ASIDE          ITEM#<id>        what a function could not read; expires
    SLACK              WRITER           which invocation of the notifier may write to Slack

The owner of a delivery is a run's id, cluster/<cluster id>, or message/<id of Slack's event>.

Read by the stores, the data stack, local mode, the benchmarks, and the notifier's reader of the
table's stream. Imports nothing of AWS. `kind` is an aggregate's `key_prefix`, e.g. RUN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PARTITION_KEY: Final = "PK"
SORT_KEY: Final = "SK"
# Time to live, in seconds since the epoch; DynamoDB deletes hours late.
EXPIRES_AT: Final = "expires_at"
STREAM_VIEW: Final = "NEW_AND_OLD_IMAGES"
# Condition of a write that must not overwrite an item.
IS_NEW: Final = f"attribute_not_exists({PARTITION_KEY})"

# Both indexes are sparse: an item is in one only while it carries the index's keys.
ALL_INDEX: Final = "GSI1"
OPEN_INDEX: Final = "GSI2"
# Name of each index -> names of its partition and sort key.
INDEXES: Final[Mapping[str, tuple[str, str]]] = {
    name: (f"{name}PK", f"{name}SK") for name in (ALL_INDEX, OPEN_INDEX)
}
_INDEXED: Final = {ALL_INDEX: "ALL", OPEN_INDEX: "OPEN"}

Item = dict[str, Any]

_STATE: Final = "STATE"
_EVENT: Final = "EVENT#"
_FREQUENT: Final = "STEP#"
_LOG: Final = "LOG#"


@dataclass(frozen=True)
class Key:
    """The place of one item."""

    partition: str
    sort: str

    @property
    def attributes(self) -> Item:
        """Write the key as the DynamoDB API takes it; the beginning of every item."""
        return {PARTITION_KEY: {"S": self.partition}, SORT_KEY: {"S": self.sort}}


@dataclass(frozen=True)
class Prefix:
    """The place of a group of items of one partition."""

    partition: str
    sort: str

    @property
    def query(self) -> Item:
        """Write the arguments of a query for the group."""
        return {
            "KeyConditionExpression": f"{PARTITION_KEY} = :pk AND begins_with({SORT_KEY}, :prefix)",
            "ExpressionAttributeValues": {
                ":pk": {"S": self.partition},
                ":prefix": {"S": self.sort},
            },
        }


@dataclass(frozen=True)
class StateOrEvent:
    """What a key says of an item: it is the state of an aggregate, or one of its events."""

    kind: str
    owner: str
    event_id: str | None
    """None where the item is the state."""


def state(kind: str, owner: str) -> Key:
    """Key the state of an aggregate."""
    return Key(f"{kind}#{owner}", _STATE)


def event(kind: str, owner: str, event_id: str, *, is_frequent: bool = False) -> Key:
    return Key(f"{kind}#{owner}", f"{_FREQUENT if is_frequent else _EVENT}{event_id}")


def events(kind: str, owner: str) -> Prefix:
    """Key all events of an aggregate but the frequent ones."""
    return Prefix(f"{kind}#{owner}", _EVENT)


def frequent_events(kind: str, owner: str) -> Prefix:
    """Key the frequent events. Ids are hashes, so the first of them are a random sample of all."""
    return Prefix(f"{kind}#{owner}", _FREQUENT)


def task_token(kind: str, owner: str, purpose: str) -> Key:
    """Key the token of a workflow that waits for something of an aggregate."""
    return Key(f"{kind}#{owner}", f"TOKEN#{purpose}")


def log_tail(kind: str, owner: str, pod: str) -> Key:
    return Key(f"{kind}#{owner}", f"{_LOG}{pod}")


def log_tails(kind: str, owner: str) -> Prefix:
    return Prefix(f"{kind}#{owner}", _LOG)


def earlier_request(dedup_key: str) -> Key:
    """Key the run that a request has started."""
    return Key(f"DEDUP#{dedup_key}", "REQUEST")


def cluster_name(name: str) -> Key:
    """Key the cluster that has a name."""
    return Key(f"NAME#{name}", "CLUSTER")


ORPHANS: Final = "ORPHANS"


def orphans(cluster_id: str) -> Key:
    """Key what the reaper has found of a cluster."""
    return Key(f"{ORPHANS}#{cluster_id}", _STATE)


LOG_FILE: Final = "LOG_FILE"


def log_file(run_id: str) -> Key:
    """Key the wish for the log of a run as a file."""
    return Key(f"{LOG_FILE}#{run_id}", _STATE)


PICTURE: Final = "PICTURE"


def picture(picture_id: str) -> Key:
    """Key the wish for the curves of several runs in one picture."""
    return Key(f"{PICTURE}#{picture_id}", _STATE)


def delivery(owner: str) -> Key:
    """Key what was posted of a run or a cluster."""
    return state("DELIVERY", owner)


def delivery_claim(owner: str, key: str) -> Key:
    """Key the claim of one message of a run or a cluster."""
    return event("DELIVERY", owner, key)


_AUDIT_ENTRY: Final = "ENTRY#"


def audit_entry(channel_id: str, number: int) -> Key:
    """Key an entry of a channel's audit; sorted by its number."""
    return Key(f"AUDIT#{channel_id}", f"{_AUDIT_ENTRY}{number:012}")


def audit_entries(channel_id: str) -> Prefix:
    return Prefix(f"AUDIT#{channel_id}", _AUDIT_ENTRY)


def person(user_id: str) -> Key:
    """Key the settings of a person."""
    return Key(f"PERSON#{user_id}", "SETTINGS")


def channel(channel_id: str) -> Key:
    """Key the settings of a channel."""
    return Key(f"CHANNEL#{channel_id}", "SETTINGS")


START_GUARD: Final = Key("GUARD", "STARTS")
DRAIN: Final = Key("GUARD", "DRAIN")
SLACK_HELD: Final = Key("SLACK", "HELD")
SLACK_WRITER: Final = Key("SLACK", "WRITER")


def slack_updates(team: str) -> Key:
    """Key the budget of edits in one workspace; "" is the first one."""
    return Key("SLACK", f"{team}/UPDATE_BUCKET".removeprefix("/"))


def slack_posts(channel: str) -> Key:
    """Key the budget of posts in one channel."""
    return Key("SLACK", f"POSTS#{channel}")


_SET_ASIDE: Final = "SET_ASIDE"
_SET_ASIDE_ITEM: Final = "ITEM#"
SET_ASIDE_ITEMS: Final = Prefix(_SET_ASIDE, _SET_ASIDE_ITEM)


def set_aside(item_id: str) -> Key:
    """Key a dead letter."""
    return Key(_SET_ASIDE, f"{_SET_ASIDE_ITEM}{item_id}")


def is_set_aside(keys: Mapping[str, Any]) -> bool:
    """Say whether the keys of a stream record are those of a dead letter."""
    return _text(keys, PARTITION_KEY) == _SET_ASIDE


def key_of(item: Mapping[str, Any]) -> Key:
    """Return the place of an item."""
    return Key(_text(item, PARTITION_KEY), _text(item, SORT_KEY))


def key_text(item: Mapping[str, Any]) -> str:
    """Write the key of an item, for a sentence."""
    return f"{_text(item, PARTITION_KEY)} {_text(item, SORT_KEY)}"


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return str(value.get("S", "")) if isinstance(value, Mapping) else ""


def read_key(keys: Mapping[str, Any]) -> StateOrEvent | None:
    """Read the keys of a stream record; None where they are of no state and no event."""
    kind, _, owner = _text(keys, PARTITION_KEY).partition("#")
    sort = _text(keys, SORT_KEY)
    if sort == _STATE:
        return StateOrEvent(kind, owner, None)
    for prefix in (_EVENT, _FREQUENT):
        if sort.startswith(prefix):
            return StateOrEvent(kind, owner, sort.removeprefix(prefix))
    return None


def index_entry(index: str, kind: str, sort: str) -> Item:
    """Make the attributes that put an item into an index."""
    partition_key, sort_key = INDEXES[index]
    return {partition_key: {"S": f"{_INDEXED[index]}#{kind}"}, sort_key: {"S": sort}}


def index_query(index: str, kind: str, *, until: str = "") -> Item:
    """Write the arguments of a query for everything of a kind in an index, or up to a sort key."""
    partition_key, sort_key = INDEXES[index]
    values = {":indexed": {"S": f"{_INDEXED[index]}#{kind}"}}
    condition = f"{partition_key} = :indexed"
    if until:
        condition += f" AND {sort_key} < :until"
        values[":until"] = {"S": until}
    return {
        "IndexName": index,
        "KeyConditionExpression": condition,
        "ExpressionAttributeValues": values,
    }


def table_definition(table_name: str) -> dict[str, Any]:
    """Write the arguments of CreateTable; the data stack adds encryption, recovery, protection."""
    keys = [(PARTITION_KEY, SORT_KEY), *INDEXES.values()]
    return {
        "TableName": table_name,
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "S"} for pair in keys for name in pair
        ],
        "KeySchema": _key_schema(PARTITION_KEY, SORT_KEY),
        "GlobalSecondaryIndexes": [
            {
                "IndexName": name,
                "KeySchema": _key_schema(*pair),
                "Projection": {"ProjectionType": "ALL"},
            }
            for name, pair in INDEXES.items()
        ],
        "BillingMode": "PAY_PER_REQUEST",
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": STREAM_VIEW},
    }


def _key_schema(partition_key: str, sort_key: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition_key, "KeyType": "HASH"},
        {"AttributeName": sort_key, "KeyType": "RANGE"},
    ]
