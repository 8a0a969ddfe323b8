"""What events of reconciliations, of zones without room and of the teardown change. Pure.

Called by `aggregate.apply`, with the values that they are about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.approvals import Approval
from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.cluster.standing import Standing
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.outside import MAX_KEPT_BYTES, clipped
from stationmaster.domain.resources import ResourceKind


class LeftZone(BaseModel):
    """A zone that was given up, its subnet, and since when."""

    model_config = ConfigDict(frozen=True)

    zone: str
    subnet_id: str
    at: datetime
    lacking: ResourceKind = ResourceKind.NODE_GROUP
    """What there was no room for."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a cluster is made of, and the numbers of training nodes that it had before."""

    spec: ClusterSpec
    earlier: Sequence[tuple[datetime, int]]

    def changed(self, at: datetime, **spec: int | None) -> dict[str, object]:
        """Return the changes with which it gets other numbers of nodes."""
        is_resized = spec["nodes"] != self.spec.nodes
        size = [(at, self.spec.nodes)] if is_resized else []
        return {
            "spec": self.spec.model_copy(update=spec),
            "earlier_sizes": [*self.earlier, *size],
        }


def gone_over(
    standing: Standing, event: ev.PassBegan, size: Size, *, passes: int, is_wanted: bool
) -> dict[str, object]:
    """Return the changes with which the reconciliation of a ready cluster begins."""
    nodes = size.spec.nodes
    if standing.phase is not ClusterPhase.READY:
        raise standing.cannot("be reconciled before it is ready")
    if event.nodes < nodes and is_wanted:
        raise IllegalTransition(
            f"cluster {standing.label} is in use and cannot get fewer nodes: which of them go "
            "is decided by AWS, not by who uses them"
        )
    return _next_pass(standing, size, nodes=event.nodes, passes=passes, at=event.at) | {
        "is_full": event.is_full,
        "resizes_from": nodes if event.nodes != nodes else None,
        "resize_failure": "",
    }


def gone_back(
    standing: Standing, event: ev.PassFailed, size: Size, *, passes: int, resizes_from: int | None
) -> dict[str, object]:
    """Return the changes with which another reconciliation begins, back to the earlier size."""
    if resizes_from is None or standing.is_going_away:
        raise standing.cannot("go back to an earlier size")
    return _next_pass(standing, size, nodes=event.nodes, passes=passes, at=event.at) | {
        "resizes_from": None,
        "resize_failure": event.reason,
    }


def settled(standing: Standing, event: ev.SizeSettled, size: Size) -> dict[str, object]:
    """Return the changes with which the nodes that came become the cluster's size for good."""
    nodes, least = size.spec.nodes, size.spec.min_nodes
    standing.refuse_going(f"settle for {event.nodes} nodes")
    if least is None or not least <= event.nodes <= nodes:
        raise standing.cannot(f"settle for {event.nodes} of {nodes} nodes")
    return size.changed(event.at, nodes=event.nodes, min_nodes=None)


def _next_pass(
    standing: Standing, size: Size, *, nodes: int, passes: int, at: datetime
) -> dict[str, object]:
    began = standing.entered(ClusterPhase.PROVISIONING, at) | size.changed(at, nodes=nodes)
    fresh = {"is_full": False, "reason": "", "plugins": [], "checks": []}
    return began | {"passes": passes + 1, **fresh}


def asked_or_decided(
    standing: Standing,
    event: ev.ApprovalEvent,
    asked: Approval | None,
    change: ev.Change | None,
    keep_until: datetime | None,
) -> dict[str, object]:
    """Return the changes of an event of an approval.

    A new cluster is kept for as long as was asked for, from when it was approved.
    """
    if isinstance(event, ev.ApprovalAsked):
        standing.refuse_going("be changed")
        return {"approval": event.approval, "change": event.change}
    if asked is None or standing.is_going_away:
        return {}
    after = asked.after(event)
    changed: dict[str, object] = {"approval": after}
    if after.is_given and asked.is_open and change is None and keep_until is not None:
        waited = event.at - standing.phases[0][1]
        changed |= {"keep_until": keep_until + waited, "keep_set_at": event.at}
    return changed


def made(asked: Approval | None, change: ev.Change | None) -> dict[str, object]:
    """Return the changes with which what was approved is made, or what waits is replaced."""
    if asked is None or change is None:
        return {}
    if asked.is_open:
        return {"approval": None, "change": None}
    return {"change": change.model_copy(update={"is_made": True})}


def torn_down(standing: Standing, event: ev.TeardownEvent) -> dict[str, object]:
    """Return the changes of an event of the teardown."""
    is_draining = standing.phase is ClusterPhase.DRAINING
    is_releasing = standing.phase is ClusterPhase.RELEASING
    none_left: dict[str, object] = {"teardown_reason": "", "left_behind": []}
    match event:
        case ev.TeardownStarted():
            if not (is_draining or is_releasing):
                raise standing.cannot("be torn down")
            return standing.entered(ClusterPhase.RELEASING, event.at) | none_left
        case ev.TeardownCompleted():
            if not is_releasing:
                raise standing.cannot("be released")
            gone = standing.entered(ClusterPhase.RELEASED, event.at)
            return gone | none_left | {"final_cost_usd": event.cost_usd}
        case ev.TeardownFailed():
            # It is recorded also where the workflow crashed before its first step.
            if not (is_draining or is_releasing):
                raise standing.cannot("have a teardown that failed")
            left = [clipped(each, MAX_KEPT_BYTES) for each in event.left]
            began = standing.entered(ClusterPhase.RELEASING, event.at) if is_draining else {}
            return began | {"teardown_reason": event.reason, "left_behind": left}
        case _:
            assert_never(event)


def zone_changed(
    standing: Standing, event: ev.ZoneGivenUp, given_up: Sequence[LeftZone], *, passes: int
) -> dict[str, object]:
    """Return the changes with which nodes and file system move to another zone."""
    standing.refuse_going(f"go to zone {event.next_zone}")
    if passes > 1:
        raise standing.cannot(f"go to zone {event.next_zone}, because it has been used")
    left = LeftZone(
        zone=event.zone, subnet_id=event.left_subnet_id, at=event.at, lacking=event.lacking
    )
    return {"given_up_zones": [*given_up, left], "subnet_id": event.subnet_id}
