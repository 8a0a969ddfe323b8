"""Zones in which AWS had no room for a cluster's nodes or file system. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.cluster.events import ZoneGivenUp
from stationmaster.domain.cluster.standing import Standing
from stationmaster.domain.resources import ResourceKind


class LeftZone(BaseModel):
    """A zone that was given up, its subnet, and since when."""

    model_config = ConfigDict(frozen=True)

    zone: str
    subnet_id: str
    at: datetime
    lacking: ResourceKind = ResourceKind.NODE_GROUP
    """What there was no room for."""


def zone_changed(
    standing: Standing, event: ZoneGivenUp, given_up: Sequence[LeftZone], *, passes: int
) -> dict[str, object]:
    """Return the changes with which nodes and file system move to another zone."""
    standing.refuse_going(f"go to zone {event.next_zone}")
    if passes > 1:
        raise standing.cannot(f"go to zone {event.next_zone}, because it has been used")
    left = LeftZone(
        zone=event.zone, subnet_id=event.left_subnet_id, at=event.at, lacking=event.lacking
    )
    return {"given_up_zones": [*given_up, left], "subnet_id": event.subnet_id}
