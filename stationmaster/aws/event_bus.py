"""EventBridge: what the workflow tells the rest of the product. The relay has its own sender."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stationmaster.aws.calls import aws_call
from stationmaster.domain.errors import TransientError
from stationmaster.domain.events import EVENT_SOURCE, RUN_ENDED_DETAIL_TYPE
from stationmaster.domain.ids import RunId

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient


class EventBus:
    """Puts events on the product's bus."""

    def __init__(self, bus_name: str, client: EventBridgeClient) -> None:
        self._bus_name = bus_name
        self._client = client

    def run_ended(self, run_id: RunId) -> None:
        """Say that a run has ended; a rule starts its teardown. Saying it twice does no harm.

        Raises:
            TransientError: EventBridge did not take the event.
        """
        with aws_call(f"telling the end of run {run_id}"):
            answer = self._client.put_events(
                Entries=[
                    {
                        "Source": EVENT_SOURCE,
                        "DetailType": RUN_ENDED_DETAIL_TYPE,
                        "Detail": json.dumps({"run_id": run_id}),
                        "EventBusName": self._bus_name,
                    }
                ]
            )
        if answer["FailedEntryCount"]:
            entry = answer["Entries"][0]
            raise TransientError(
                f"EventBridge refused the end of run {run_id}: {entry.get('ErrorMessage', entry)}"
            )
