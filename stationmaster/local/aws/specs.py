"""What a deployment creates, as plain data with names only.

`local.product` writes it down from the registry; `deployment` creates it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stationmaster.local.aws.http_api import Route
from stationmaster.local.aws.schedules import Schedule


@dataclass(frozen=True)
class FunctionSpec:
    """A Lambda function; `handler` is module.attribute, importable from the repository root."""

    name: str
    handler: str
    timeout_s: int = 30
    memory_mib: int = 512
    environment: Mapping[str, str] = field(default_factory=dict)
    # The queue for events that it failed with, where they come without a caller who waits.
    on_failure: str = ""


@dataclass(frozen=True)
class TableSpec:
    """A DynamoDB table with string keys and a stream of new and old images."""

    name: str
    partition_key: str = "pk"
    sort_key: str = "sk"
    ttl_attribute: str = ""
    # Index name -> (partition key, sort key).
    indexes: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class BucketSpec:
    """A versioned S3 bucket."""

    name: str


@dataclass(frozen=True)
class StreamSpec:
    """Feeds a table's stream to a function; no retry limit means until the function succeeds."""

    table: str
    function: str
    batch_size: int = 100
    max_retry_attempts: int = -1
    bisect_batch: bool = False
    max_record_age_s: int = -1
    on_failure: str = ""


@dataclass(frozen=True)
class StateMachineSpec:
    """A state machine; `${Name}` in its definition becomes a function's ARN."""

    name: str
    definition: str


@dataclass(frozen=True)
class RuleSpec:
    """Sends matching events of a bus to a function."""

    name: str
    event_pattern: Mapping[str, Any]
    function: str
    bus: str = "default"
    # The queue for events that do not reach the target.
    dead_letters: str = ""


@dataclass(frozen=True)
class NetworkSpec:
    """A VPC with one private subnet in each zone."""

    name: str = "stationmaster"


@dataclass(frozen=True)
class DeploymentSpec:
    """Everything that a deployment creates."""

    # Names of SQS queues for what was tried in vain.
    queues: Sequence[str] = ()
    functions: Sequence[FunctionSpec] = ()
    tables: Sequence[TableSpec] = ()
    buckets: Sequence[BucketSpec] = ()
    streams: Sequence[StreamSpec] = ()
    buses: Sequence[str] = ()
    rules: Sequence[RuleSpec] = ()
    schedules: Sequence[Schedule] = ()
    # Groups of EventBridge Scheduler, for schedules that the product itself makes.
    schedule_groups: Sequence[str] = ()
    routes: Sequence[Route] = ()
    state_machines: Sequence[StateMachineSpec] = ()
    # Secret name -> value; None for none yet.
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    # Names of IAM roles, beside the one that functions and state machines run with.
    roles: Sequence[str] = ()
    network: NetworkSpec | None = None
