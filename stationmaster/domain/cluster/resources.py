"""What a cluster has in the account, and what each part costs. Pure; used by `aggregate`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, assert_never

from stationmaster.domain.aggregate import Bound
from stationmaster.domain.cluster.events import (
    ResourceCreated,
    ResourceDeleted,
    ResourceEvent,
    ResourceRefused,
    ResourceRequested,
    ResourceSeen,
)
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.resources import Left, ResourceKind

MAX_PRICES: Final = 8
_KNOWN_BY_NAME: Final = frozenset(
    {
        ResourceKind.CLUSTER,
        ResourceKind.NODE_GROUP,
        ResourceKind.LAUNCH_TEMPLATE,
        ResourceKind.PLACEMENT_GROUP,
    }
)
_MADE_FOR: Final = {
    ResourceKind.INSTANCE: ResourceKind.NODE_GROUP,
    ResourceKind.VOLUME: ResourceKind.NODE_GROUP,
    ResourceKind.NETWORK_INTERFACE: ResourceKind.CLUSTER,
    ResourceKind.EKS_SECURITY_GROUP: ResourceKind.CLUSTER,
    ResourceKind.LOG_GROUP: ResourceKind.CLUSTER,
}


class ResourceStatus(StrEnum):
    """The life of one resource: requested before it is created, deleted once it is seen gone."""

    REQUESTED = "requested"
    ACTIVE = "active"
    DELETED = "deleted"


class Resource(Frozen):
    """Something billable, or something that holds something billable."""

    kind: ResourceKind
    name: str
    resource_id: str = ""
    status: ResourceStatus = ResourceStatus.REQUESTED
    price_per_hour_usd: float = 0.0
    earlier_prices: Annotated[list[tuple[datetime, float]], Bound(MAX_PRICES)] = []
    """The prices an hour that it had, each with its end, oldest first, where its size changed."""
    creations: int = 1
    """How often its creation was requested: again where AWS refused it or it was lost."""
    requested_at: datetime
    seen_at: datetime | None = None
    """When AWS was first seen to list it."""
    refused_at: datetime | None = None
    active_at: datetime | None = None
    deleted_at: datetime | None = None

    @property
    def has_appeared(self) -> bool:
        """Whether its creation had its effect, whatever became of it since."""
        return self.seen_at is not None or self.active_at is not None

    @property
    def may_appear(self) -> bool:
        """Whether it was asked for with an unknown outcome."""
        return not self.has_appeared and self.refused_at is None

    @property
    def never_was(self) -> bool:
        """Whether AWS refused to create it and it was not there before."""
        return self.refused_at is not None and not self.has_appeared and not self.earlier_prices

    def cost_usd(self, now: datetime) -> float:
        """Return the USD from its request until `now`, or until it was seen gone."""
        return self.cost_between(self.requested_at, self.deleted_at or now)

    def cost_between(self, start: datetime, end: datetime) -> float:
        """Return the USD from `start` to `end`, within its life."""
        since = max(start, self.requested_at)
        until = end if self.deleted_at is None else min(end, self.deleted_at)
        cost = 0.0
        for changed_at, price in [*self.earlier_prices, (until, self.price_per_hour_usd)]:
            stretch = min(changed_at, until) - since
            if stretch.total_seconds() > 0:
                cost += price * stretch.total_seconds() / 3600
                since += stretch
        return cost


def resource_key(kind: ResourceKind, name: str) -> str:
    """Make the key under which a cluster keeps a resource."""
    return f"{kind.value}/{name}"


def explains(known: Mapping[str, Resource], left: Left) -> bool:
    """Say whether a cluster's recorded resources explain what AWS lists with its tag.

    What AWS's own parts make is explained by what they made it for.
    """
    kind = _MADE_FOR.get(left.kind, left.kind)
    recorded = [each for each in known.values() if each.kind is kind and not each.never_was]
    if kind is not left.kind:
        return bool(recorded)
    if kind in _KNOWN_BY_NAME:
        return any(each.name == left.name for each in recorded)
    # An id is noted when a creation is seen to be complete, the last one's where there were more.
    return any(each.resource_id in ("", left.id) or each.creations > 1 for each in recorded)


def resources_after(known: Mapping[str, Resource], event: ResourceEvent) -> dict[str, Resource]:
    """Return the resources after `event`."""
    key = resource_key(event.kind, event.name)
    old = known.get(key)
    base = old or Resource(kind=event.kind, name=event.name, requested_at=event.at)
    match event:
        case ResourceRequested():
            changes: dict[str, object] = {}
            if old is None:
                changes = {"price_per_hour_usd": event.price_per_hour_usd}
            elif event.anew or old.status is ResourceStatus.DELETED:
                changes = {
                    "status": ResourceStatus.REQUESTED,
                    "creations": old.creations + 1,
                    "requested_at": old.requested_at if old.has_appeared else event.at,
                    "seen_at": None,
                    "refused_at": None,
                    "active_at": None,
                    "deleted_at": None,
                    **_paid_anew(old, event),
                }
            elif old.price_per_hour_usd != event.price_per_hour_usd:
                changes = {
                    "price_per_hour_usd": event.price_per_hour_usd,
                    "earlier_prices": _priced(old, (event.at, old.price_per_hour_usd)),
                }
        case ResourceSeen():
            changes = {"seen_at": event.at}
        case ResourceRefused():
            changes = {"refused_at": event.at, "price_per_hour_usd": 0.0}
        case ResourceCreated():
            changes = {
                "status": ResourceStatus.ACTIVE,
                "active_at": event.at,
                "resource_id": event.resource_id,
            }
        case ResourceDeleted():
            changes = {"status": ResourceStatus.DELETED, "deleted_at": event.at}
        case _:
            assert_never(event)
    return {**known, key: base.model_copy(update=changes)}


def _paid_anew(old: Resource, event: ResourceRequested) -> dict[str, object]:
    """Charge nothing from when a resource was seen gone until it is asked for again."""
    if old.deleted_at is None:
        refused = old.refused_at is not None
        return {"price_per_hour_usd": event.price_per_hour_usd} if refused else {}
    until_gone = (old.deleted_at, old.price_per_hour_usd)
    return {
        "price_per_hour_usd": event.price_per_hour_usd,
        "earlier_prices": _priced(old, until_gone, (event.at, 0.0)),
    }


def _priced(old: Resource, *ended: tuple[datetime, float]) -> list[tuple[datetime, float]]:
    """Return the prices with the ended ones; the oldest become one that costs the same."""
    prices = [*old.earlier_prices, *ended]
    while len(prices) > MAX_PRICES:
        (first, price), (second, then) = prices[:2]
        whole_s = (second - old.requested_at).total_seconds()
        part = max(0.0, (first - old.requested_at).total_seconds()) / whole_s if whole_s > 0 else 0
        prices[:2] = [(second, price * part + then * (1 - part))]
    return prices
