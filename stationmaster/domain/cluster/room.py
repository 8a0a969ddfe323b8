"""Too little that is free on the file system that was made for a cluster."""

from __future__ import annotations

from typing import Final, Literal

from stationmaster.domain.event import Event
from stationmaster.domain.ids import ClusterId

LOW: Final = 0.1
"""The share of the size below which people are warned, once a day."""


class RoomLow(Event):
    """The file system that was made for a cluster is almost full."""

    type: Literal["cluster.room_low"] = "cluster.room_low"
    cluster_id: ClusterId
    free_gib: int
    size_gib: int
