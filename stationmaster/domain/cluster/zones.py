"""Zones in which AWS had no room for a cluster's nodes or file system. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.cluster.changes import cannot, refuse_going
from stationmaster.domain.cluster.events import ZoneGivenUp
from stationmaster.domain.resources import ResourceKind

if TYPE_CHECKING:
    from stationmaster.domain.cluster.aggregate import Cluster


class LeftZone(BaseModel):
    """A zone that was given up, its subnet, and since when."""

    model_config = ConfigDict(frozen=True)

    zone: str
    subnet_id: str
    at: datetime
    lacking: ResourceKind = ResourceKind.NODE_GROUP
    """What there was no room for."""


def zone_changed(cluster: Cluster, event: ZoneGivenUp) -> dict[str, object]:
    """Return the changes with which nodes and file system move to another zone."""
    refuse_going(cluster, f"go to zone {event.next_zone}")
    if cluster.passes > 1:
        raise cannot(cluster, f"go to zone {event.next_zone}, because it has been used")
    left = LeftZone(
        zone=event.zone, subnet_id=event.left_subnet_id, at=event.at, lacking=event.lacking
    )
    return {
        "given_up_zones": [*cluster.given_up_zones, left],
        "subnet_id": event.subnet_id,
    }
