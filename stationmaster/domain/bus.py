"""What travels on the EventBridge bus: the relay's batches, and the names that rules match on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stationmaster.domain.ids import RunId
from stationmaster.domain.outside import Moment
from stationmaster.domain.run.events import RUN_EVENT, RunEvent

EVENT_SOURCE = "stationmaster"
RELAY_BATCH_DETAIL_TYPE = "Relay Batch"
CLUSTER_DRAINED_DETAIL_TYPE = "Cluster Drained"


class LogTail(BaseModel):
    """The newest log lines of one pod; kept beside the run for `/train logs`, not an event."""

    model_config = ConfigDict(frozen=True)

    pod: str
    at: Moment
    lines: list[str] = Field(max_length=200)


class RelayBatch(BaseModel):
    """Detail of one EventBridge entry of the relay: events in order, newest log tails, a heartbeat.

    `heartbeat` says that the relay is alive and the job is still there; it keeps the workflow's
    task token from expiring even when nothing happens.
    """

    model_config = ConfigDict(frozen=True)

    run_id: RunId
    batch_id: str
    at: Moment
    events: list[RunEvent] = []
    log_tails: list[LogTail] = []
    heartbeat: bool = False


@dataclass(frozen=True)
class Unread:
    """A part of a batch that cannot be read: the key of its list, the part, and why."""

    key: str
    part: Any
    error: ValidationError


_PartT = TypeVar("_PartT")


def read_batch(detail: Mapping[str, Any]) -> tuple[RelayBatch, list[Unread]]:
    """The batch without what cannot be read, and that. One bad event costs no other.

    Raises:
        ValidationError: it is no batch at all.
    """
    try:
        return RelayBatch.model_validate(detail), []
    except ValidationError:
        batch = RelayBatch.model_validate({**detail, "events": [], "log_tails": []})
    unread: list[Unread] = []

    def readable(key: str, read: Callable[[Any], _PartT]) -> list[_PartT]:
        found, parts = [], detail.get(key) or []
        for part in parts if isinstance(parts, list) else [parts]:
            try:
                found.append(read(part))
            except ValidationError as exc:
                unread.append(Unread(key, part, exc))
        return found

    events = readable("events", RUN_EVENT.validate_python)
    tails = readable("log_tails", LogTail.model_validate)
    return batch.model_copy(update={"events": events, "log_tails": tails}), unread
