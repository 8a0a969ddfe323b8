"""EventBridge: events of the workflow for the rest of the product. The relay has its own sender."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stationmaster.aws.calls import Adapter, aws_call
from stationmaster.domain.bus import CLUSTER_DRAINED_DETAIL_TYPE, EVENT_SOURCE
from stationmaster.domain.errors import TransientError
from stationmaster.domain.ids import ClusterId

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient


class EventBus(Adapter):
    """Puts events on the product's bus."""

    _client: EventBridgeClient

    def cluster_drained(self, cluster_id: ClusterId) -> None:
        """Announce that a cluster has no lease any more, which starts its teardown; twice is
        harmless.

        Raises:
            TransientError: EventBridge did not take the event.
        """
        with aws_call(f"publishing that cluster {cluster_id} drains"):
            answer = self._client.put_events(
                Entries=[
                    {
                        "Source": EVENT_SOURCE,
                        "DetailType": CLUSTER_DRAINED_DETAIL_TYPE,
                        "Detail": json.dumps({"cluster_id": cluster_id}),
                        "EventBusName": self._settings.bus_name,
                    }
                ]
            )
        if answer["FailedEntryCount"]:
            entry = answer["Entries"][0]
            raise TransientError(
                f"EventBridge refused the end of cluster {cluster_id}: "
                f"{entry.get('ErrorMessage', entry)}"
            )
