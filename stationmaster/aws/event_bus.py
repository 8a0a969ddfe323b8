"""EventBridge: events of the workflow for the rest of the product. The relay has its own sender."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stationmaster.aws.calls import Adapter, aws_call
from stationmaster.domain.bus import (
    CLUSTER_DRAINED_DETAIL_TYPE,
    EVENT_SOURCE,
    NODES_WANTED_DETAIL_TYPE,
    NodesWanted,
)
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
        self._put(
            CLUSTER_DRAINED_DETAIL_TYPE,
            {"cluster_id": cluster_id},
            what=f"publishing that cluster {cluster_id} drains",
        )

    def nodes_wanted(self, wanted: NodesWanted) -> None:
        """Ask for a cluster's nodes; the recorder looks, and records what it sees.

        Raises:
            TransientError: EventBridge did not take the event.
        """
        what = f"asking for the nodes of cluster {wanted.cluster_id}"
        self._put(NODES_WANTED_DETAIL_TYPE, wanted.model_dump(), what=what)

    def _put(self, detail_type: str, detail: Mapping[str, Any], *, what: str) -> None:
        with aws_call(what):
            answer = self._client.put_events(
                Entries=[
                    {
                        "Source": EVENT_SOURCE,
                        "DetailType": detail_type,
                        "Detail": json.dumps(detail),
                        "EventBusName": self._settings.bus_name,
                    }
                ]
            )
        if answer["FailedEntryCount"]:
            entry = answer["Entries"][0]
            raise TransientError(
                f"{what}: EventBridge refused it: {entry.get('ErrorMessage', entry)}"
            )
