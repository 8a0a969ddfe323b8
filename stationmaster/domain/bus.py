"""What travels on the EventBridge bus: the relay's batches, and the names that rules match on.

A batch counts only with the signature of its run's relay. The key of a run is made of the
deployment's key and the run's id, by the workflow for the relay and by the recorder again, so no
run's key is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError

from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.outside import Count, Moment
from stationmaster.domain.run.events import RELAY_EVENT, RelayEvent

EVENT_SOURCE = "stationmaster"
RELAY_BATCH_DETAIL_TYPE = "Relay Batch"
CLUSTER_DRAINED_DETAIL_TYPE = "Cluster Drained"
NODES_WANTED_DETAIL_TYPE = "Nodes Wanted"


class LogTail(Frozen):
    """The newest log lines of one pod; kept beside the run for `/train logs`, not an event."""

    pod: str
    at: Moment
    lines: list[str] = Field(max_length=200)
    ages_s: list[Count] = Field(default=[], max_length=200)
    """The whole seconds before `at` at which each line was written; empty where nobody says so."""

    def lines_with(self, text: str, *, since: datetime | None) -> list[str]:
        """Return the lines that contain `text`, in capitals or not, and are no older."""
        ages = self.ages_s or [0] * len(self.lines)
        return [
            line
            for line, age_s in zip(self.lines, ages, strict=False)
            if text.lower() in line.lower()
            and (since is None or self.at - timedelta(seconds=age_s) >= since)
        ]


class RelayBatch(Frozen):
    """Detail of one EventBridge entry of the relay: events in order, newest log tails, a heartbeat.

    `heartbeat` says that the relay is alive and the job is still there; it keeps the workflow's
    task token from expiring even when nothing happens.
    """

    run_id: RunId
    batch_id: str
    at: Moment
    events: list[Annotated[RelayEvent, Field(discriminator="type")]] = []
    log_tails: list[LogTail] = []
    heartbeat: bool = False
    signature: str = ""


class NodesWanted(Frozen):
    """Detail of the entry by which somebody asks for a cluster's nodes."""

    cluster_id: ClusterId
    asked: str
    """The same for each delivery of one question."""


def relay_key(deployment_key: SecretStr, run_id: RunId) -> SecretStr:
    """Make the key of one run's relays."""
    return SecretStr(_hmac(deployment_key, f"relay of run {run_id}"))


def signature(detail: Mapping[str, Any], key: SecretStr) -> str:
    """Sign a batch's detail, by its values: spaces and the order of keys do not matter."""
    text = json.dumps({name: value for name, value in detail.items() if name != "signature"})
    # A number that was written as 1.0 may arrive as 1.
    plain = json.loads(text, parse_int=float)
    return _hmac(key, json.dumps(plain, sort_keys=True))


def is_signed(detail: Mapping[str, Any], key: SecretStr) -> bool:
    """Say whether a relay that has the key wrote this batch."""
    found = str(detail.get("signature", ""))
    return hmac.compare_digest(found.encode(), signature(detail, key).encode())


def _hmac(key: SecretStr, text: str) -> str:
    return hmac.new(key.get_secret_value().encode(), text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Unread:
    """A part of a batch that cannot be read: the key of its list, the part, and why."""

    key: str
    part: Any
    error: ValidationError


def read_batch(detail: Mapping[str, Any]) -> tuple[RelayBatch, list[Unread]]:
    """Read a batch; what cannot be read of it is returned beside it, and costs no other event.

    Raises:
        ValidationError: it is no batch at all.
    """
    try:
        return RelayBatch.model_validate(detail), []
    except ValidationError:
        batch = RelayBatch.model_validate({**detail, "events": [], "log_tails": []})
    readers: dict[str, Callable[[Any], object]] = {
        "events": RELAY_EVENT.validate_python,
        "log_tails": LogTail.model_validate,
    }
    unread: list[Unread] = []
    readable: dict[str, list[object]] = {key: [] for key in readers}
    for key, read in readers.items():
        parts = detail.get(key) or []
        for part in parts if isinstance(parts, list) else [parts]:
            try:
                readable[key].append(read(part))
            except ValidationError as exc:
                unread.append(Unread(key, part, exc))
    return batch.model_copy(update=readable), unread
