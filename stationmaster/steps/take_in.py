"""What arrives at the recorder: recorded, or kept as a dead letter.

Nothing that arrives may keep what comes after it waiting, or be delivered again for ever: what
cannot be read, or cannot be true, becomes a dead letter with the reason. Only what another try may
help is left to raise, so that AWS delivers it again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import AwareDatetime, SecretStr, ValidationError

from stationmaster.domain.bus import (
    NODES_WANTED_DETAIL_TYPE,
    RELAY_BATCH_DETAIL_TYPE,
    NodesWanted,
    RelayBatch,
    Unread,
    is_signed,
    read_batch,
    signature,
)
from stationmaster.domain.errors import ClusterNotFound, RunNotFound, Unreadable
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.outside import first_problem
from stationmaster.services import Services
from stationmaster.setting_aside import set_aside
from stationmaster.steps.parts.node_looks import look_at_nodes
from stationmaster.steps.record_events import record_batch, record_dead_execution

RECORDER: Final = "recorder"

logger = logging.getLogger(__name__)

_FORGED: Final = (
    "its signature is not the one of the run's relay; nothing of it counts, whoever sent it"
)


class DeadExecution(Frozen):
    """The detail of Step Functions' event of an execution that ended badly."""

    stateMachineArn: str  # noqa: N815  # AWS's spelling
    name: str
    status: str
    cause: str | None = None


class _Sent(Frozen):
    """What every batch says of itself, also one whose events cannot be read."""

    at: AwareDatetime


def take_in(services: Services, event: Any) -> dict[str, int]:
    """Take in one event of the recorder's rules; return how many dead letters it made.

    Raises:
        TransientError: another delivery of the same event is expected to help.
    """
    arrived = _Arrived(services, event)
    if arrived.detail_type == RELAY_BATCH_DETAIL_TYPE:
        _take_in_batch(services, arrived)
        return arrived.answer()
    if arrived.detail_type == NODES_WANTED_DETAIL_TYPE:
        try:
            look_at_nodes(services, NodesWanted.model_validate(arrived.detail))
        except ValidationError as exc:
            arrived.set_aside("a question for nodes", first_problem(exc))
        except (ClusterNotFound, Unreadable) as exc:
            arrived.set_aside("a question for nodes", str(exc))
        return arrived.answer()
    try:
        dead = DeadExecution.model_validate(arrived.detail)
    except ValidationError as exc:
        arrived.set_aside("an event of an execution", first_problem(exc))
        return arrived.answer()
    try:
        record_dead_execution(
            services,
            state_machine_arn=dead.stateMachineArn,
            execution_name=dead.name,
            status=dead.status,
            cause=dead.cause or "",
        )
    except Unreadable as exc:
        arrived.set_aside(f"the end of execution {dead.name}", str(exc))
    return arrived.answer()


def sent_by_relay_at(event: Any) -> datetime | None:
    """When a relay sent the batch that an event carries; None for any other event."""
    arrived = event if isinstance(event, Mapping) else {}
    if arrived.get("detail-type") != RELAY_BATCH_DETAIL_TYPE:
        return None
    try:
        return _Sent.model_validate(arrived.get("detail")).at
    except ValidationError:  # it became a dead letter
        return None


class _Arrived:
    """An event as EventBridge delivers it, and the dead letters that it made."""

    def __init__(self, services: Services, event: Any) -> None:
        self._services = services
        self._event = event
        self._num_set_aside = 0

    @property
    def detail_type(self) -> Any:
        return self._event.get("detail-type") if isinstance(self._event, Mapping) else None

    @property
    def detail(self) -> Any:
        return self._event.get("detail") if isinstance(self._event, Mapping) else None

    def set_aside(self, what: str, reason: str, *, detail: Any = None) -> None:
        """Keep the event, with another detail where only a part of it is meant."""
        payload = self._event if detail is None else {**self._event, "detail": detail}
        set_aside(self._services, function=RECORDER, what=what, reason=reason, payload=payload)
        self._num_set_aside += 1

    def answer(self) -> dict[str, int]:
        return {"set_aside": self._num_set_aside}


def _take_in_batch(services: Services, arrived: _Arrived) -> None:
    try:
        batch, unread = read_batch(arrived.detail)
    except (ValidationError, TypeError) as exc:
        reason = first_problem(exc) if isinstance(exc, ValidationError) else str(exc)
        arrived.set_aside("a batch of a relay", reason)
        return
    key = services.secrets.relay_key(batch.run_id)
    if not is_signed(arrived.detail, key):
        logger.warning("batch is not signed by the relay", extra={"run_id": batch.run_id})
        if batch.events or batch.log_tails or unread:
            arrived.set_aside(f"a batch of run {batch.run_id}", _FORGED)
        return
    for part in unread:
        arrived.set_aside(
            _named(part, batch),
            first_problem(part.error),
            detail=_batch_of(batch, part.key, part.part, key=key),
        )
    try:
        refused = record_batch(services, batch)
    except (RunNotFound, Unreadable) as exc:
        # A heartbeat alone has nothing that could be recorded later.
        if batch.events or batch.log_tails:
            whole = _signed({**batch.model_dump(mode="json"), "heartbeat": False}, key=key)
            arrived.set_aside(f"a batch of run {batch.run_id}", str(exc), detail=whole)
        return
    for event, reason in refused:
        alone = _batch_of(batch, "events", event.model_dump(mode="json"), key=key)
        arrived.set_aside(f"event {event.type} of run {batch.run_id}", reason, detail=alone)


def _named(part: Unread, batch: RelayBatch) -> str:
    kind = part.part.get("type", "") if isinstance(part.part, Mapping) else ""
    name = "log lines" if part.key == "log_tails" else f"event {kind or 'without a type'}"
    return f"{name} of run {batch.run_id}"


def _batch_of(batch: RelayBatch, name: str, part: Any, *, key: SecretStr) -> dict[str, Any]:
    """Make the detail of a batch that has one part only."""
    empty = batch.model_copy(update={"events": [], "log_tails": [], "heartbeat": False})
    return _signed({**empty.model_dump(mode="json"), name: [part]}, key=key)


def _signed(detail: dict[str, Any], *, key: SecretStr) -> dict[str, Any]:
    """Sign a detail that was taken from a signed one, so that it counts when it is sent again."""
    return {**detail, "signature": signature(detail, key)}
