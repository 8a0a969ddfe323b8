"""What travels on the EventBridge bus: the relay's batches, and the names that rules match on."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from stationmaster.domain.ids import RunId
from stationmaster.domain.run.events import RunEvent

EVENT_SOURCE = "stationmaster"
RELAY_BATCH_DETAIL_TYPE = "Relay Batch"
CLUSTER_DRAINED_DETAIL_TYPE = "Cluster Drained"


class LogTail(BaseModel):
    """The newest log lines of one pod; kept beside the run for `/train logs`, not an event."""

    model_config = ConfigDict(frozen=True)

    pod: str
    at: datetime
    lines: list[str] = Field(max_length=200)


class RelayBatch(BaseModel):
    """Detail of one EventBridge entry of the relay: events in order, newest log tails, a heartbeat.

    `heartbeat` says that the relay is alive and the job is still there; it keeps the workflow's
    task token from expiring even when nothing happens.
    """

    model_config = ConfigDict(frozen=True)

    run_id: RunId
    batch_id: str
    at: datetime
    events: list[RunEvent] = []
    log_tails: list[LogTail] = []
    heartbeat: bool = False
