"""What `capacity=` means: instances on demand, spot instances, or those of a reservation.

`parameters` calls it while it reads a command. Pure: who asks EC2 about a reservation is given by
the caller. A capacity block is a reservation for some days that was paid for in advance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from stationmaster.domain.cluster.spec import LEAVE_S, Reservation, Window
from stationmaster.domain.errors import BadCommand, BadParameter, NotPossibleNow
from stationmaster.domain.planning.cost import NodeSource, stop_deadline
from stationmaster.domain.planning.plan import Plan

CAPACITY: Final = "capacity"
ON_DEMAND: Final = "on-demand"
SPOT: Final = "spot"
_RESERVATION: Final = "odcr:"
_BLOCK: Final = "block:"
# Source: EC2 API reference, CapacityReservationId: cr- and 17 hex digits.
_ID: Final = re.compile(r"cr-[0-9a-f]{17}")
# From the request to stop to the trainer's notice of it: a clock that rings late, and its pods.
_UNTIL_STOPPED_S: Final = 300


@dataclass(frozen=True)
class FoundReservation:
    """A capacity reservation or block, as EC2 described it when it was typed."""

    reservation: Reservation
    instance_type: str
    available: int
    """Instances of it that nobody uses; before a block's start, all of them."""
    total: int
    ends_at: datetime | None = None
    """When EC2 ends it; None where only its owner does."""
    seen_at: datetime | None = None
    """When EC2 was asked; None where that does not matter."""


FindReservation = Callable[[str], FoundReservation]
"""Asks EC2 about a reservation by its id. Raises a UserError that says why it cannot be used."""


@dataclass(frozen=True)
class Capacity:
    """Where the training nodes of a new cluster come from."""

    is_spot: bool = False
    found: FoundReservation | None = None
    """None where they are of no reservation."""

    @property
    def reservation(self) -> Reservation | None:
        """The reservation or block that they are taken from."""
        return self.found.reservation if self.found is not None else None

    @property
    def window(self) -> Window | None:
        """When a capacity block has them."""
        return self.reservation.window if self.reservation is not None else None

    @property
    def source(self) -> NodeSource:
        """The same for a plan."""
        if self.found is None:
            return NodeSource(words="spot instances" if self.is_spot else "")
        return NodeSource(
            words=f"of {_called(self.found)}",
            is_prepaid=self.window is not None,
            is_placed=True,
        )

    @property
    def typed(self) -> str:
        """The key and its value as they are typed again."""
        return f"{CAPACITY}={typed_capacity(self.reservation, is_spot=self.is_spot) or ON_DEMAND}"


def no_reservations(reservation_id: str) -> FoundReservation:
    """Find nothing: where AWS is not meant to be asked.

    Raises:
        NotPossibleNow: always.
    """
    raise NotPossibleNow(
        f"{reservation_id} is a reservation of the deployment's AWS account, and that is not asked "
        "here; type the command in the channel"
    )


def read_capacity(value: str | None, *, find_reservation: FindReservation) -> Capacity:
    """What was typed; instances on demand where nothing was.

    Raises:
        UserError: it is nothing of that, or the reservation cannot be used.
    """
    if value in (None, ON_DEMAND):
        return Capacity()
    assert value is not None
    if value == SPOT:
        return Capacity(is_spot=True)
    kind = next((each for each in (_RESERVATION, _BLOCK) if value.startswith(each)), None)
    if kind is None or not _ID.fullmatch(value.removeprefix(kind)):
        raise BadCommand(
            f"{CAPACITY}={value[:80]} is not accepted: expected {ON_DEMAND}, {SPOT}, or "
            f"{_RESERVATION} or {_BLOCK} and the id of a capacity reservation or capacity block, "
            "such as odcr:cr-0123456789abcdef0"
        )
    capacity = Capacity(found=find_reservation(value.removeprefix(kind)))
    if capacity.typed != f"{CAPACITY}={value}":
        is_block = capacity.window is not None
        what = "a capacity block" if is_block else "an on-demand capacity reservation"
        raise BadParameter(
            f"{CAPACITY}={value} names {what}, not what it says; type {capacity.typed}"
        )
    return capacity


def capacity_meant(value: str) -> str | None:
    """The same in the spelling that is accepted; None where nothing is meant."""
    lowered = value.lower().replace("_", "-")
    found = re.search(r"cr-[0-9a-f]{17}(?![0-9a-f])", lowered)
    if found:
        return f"{_BLOCK if 'block' in lowered else _RESERVATION}{found[0]}"
    if lowered in (SPOT, "spots", "spot-instances"):
        return SPOT
    return ON_DEMAND if lowered in ("ondemand", ON_DEMAND) else None


def typed_capacity(reservation: Reservation | None, *, is_spot: bool = False) -> str | None:
    """The value as it is typed again; None for instances on demand."""
    if reservation is None:
        return SPOT if is_spot else None
    kind = _BLOCK if reservation.window is not None else _RESERVATION
    return f"{kind}{reservation.reservation_id}"


def reserved_type(
    capacity: Capacity,
    *,
    instance_type: str | None,
    on: str | None,
    eks_name: str,
    zone: str | None,
    keep_s: int = 0,
) -> str | None:
    """The instance type of the nodes: the reservation's where none was typed.

    `zone` is that of a file system that exists, where one was typed.

    Raises:
        BadCommand, BadParameter: the capacity does not go with what else was typed.
    """
    found, typed = capacity.found, capacity.typed
    if (found is not None or capacity.is_spot) and (on is not None or eks_name):
        other = f"on={on}" if on is not None else f"cluster=eks:{eks_name}"
        raise BadCommand(
            f"{typed} cannot be used with {other}: that cluster's nodes are there; leave "
            f"{CAPACITY}= out"
        )
    if found is None:
        return instance_type
    if keep_s:
        refuse_kept_block(capacity, "keep=")
    if instance_type not in (None, found.instance_type):
        raise BadParameter(
            f"{typed} is for {found.instance_type} and instance={instance_type} asks for others; "
            "leave instance= out"
        )
    if zone is not None and zone != found.reservation.zone:
        raise BadParameter(
            f"{typed} is in zone {found.reservation.zone} and the file system in {zone}; nodes and "
            "file system are in one zone"
        )
    return found.instance_type


def refuse_too_few(found: FoundReservation | None, nodes: int) -> None:
    """Refuse nodes that a reservation has not free.

    Raises:
        NotPossibleNow: fewer of its instances are free than `nodes`.
    """
    if found is not None and found.available < nodes:
        raise NotPossibleNow(
            f"{_called(found)} has {found.available} of {found.total} {found.instance_type} free, "
            f"and {nodes} are needed; use fewer nodes, or wait until others have left it"
        )


def refuse_kept_block(capacity: Capacity, key: str) -> None:
    """Refuse to keep nodes that AWS takes back at a fixed time; `key` is what would keep them.

    Raises:
        BadCommand: naming both.
    """
    if capacity.window is not None:
        raise BadCommand(
            f"{capacity.typed} cannot be used with {key}: AWS takes the nodes back when the block "
            "ends; use it for one run, without keep="
        )


def reservation_of(capacity: Capacity, plan: Plan) -> Reservation | None:
    """The reservation, and of a block how long before its end the planned run has to leave it."""
    reservation, window = capacity.reservation, capacity.window
    if reservation is None or window is None:
        return reservation
    needed = stop_deadline(step_s=plan.step_time_s, write_s=plan.checkpoint_write_s)
    leave_s = max(LEAVE_S, needed + _UNTIL_STOPPED_S)
    return reservation.model_copy(update={"window": window.model_copy(update={"leave_s": leave_s})})


def plan_with_capacity(plan: Plan, capacity: Capacity) -> Plan:
    """The plan with what the choice of capacity means.

    Raises:
        NotPossibleNow: a reservation has fewer free instances than the run needs.
    """
    if capacity.is_spot:
        return _with_notes(plan, _SPOT_NOTE)
    found = capacity.found
    if found is None:
        return plan
    refuse_too_few(found, plan.nodes if plan.min_nodes is None else plan.min_nodes)
    window = capacity.window
    there = (
        f"nodes are of {_called(found)} in zone {found.reservation.zone}, which has "
        f"{found.available} of {found.total} free"
    )
    if window is not None:
        return _with_notes(plan, *_block_notes(plan, capacity, there))
    ends = f"; it ends at {moment(found.ends_at)}" if found.ends_at else ""
    return _with_notes(
        plan, f"{there}{ends}; it stays as it is and is billed whether it is used or not"
    )


_SPOT_NOTE: Final = (
    "nodes are spot instances: AWS may take each back two minutes after it says so, the run then "
    "goes on from its last checkpoint once there is another; what they cost is not known before, "
    "so their price here is the one on demand, which is the most that it can be"
)


def _block_notes(plan: Plan, capacity: Capacity, there: str) -> list[str]:
    reservation = reservation_of(capacity, plan)
    assert reservation is not None
    assert reservation.window is not None
    window, now = reservation.window, capacity.found.seen_at if capacity.found else None
    leave_at = moment(window.leave_at)
    notes = [
        f"{there}, from {moment(window.starts_at)} to {moment(window.ends_at)}; it was paid for "
        "when it was bought, so price and cost here are without its nodes",
        f"AWS takes the nodes back from {moment(window.taken_back_at)} on, so the run is stopped "
        f"at {leave_at} and its results are saved",
    ]
    if now is None:
        return notes
    begins = max(now, window.starts_at)
    if begins > now:
        notes.append(f"the run waits until {moment(begins)}; nothing is made or paid before")
    left_s = (window.leave_at - begins).total_seconds()
    if left_s < plan.estimated_duration_s:
        hours, has = plan.estimated_duration_s / 3600, max(0.0, left_s) / 3600
        notes.insert(
            0,
            f"the run needs about {_hours(hours)} and the block leaves it {_hours(has)}: it will "
            "be stopped before its end; use fewer steps, or resume it later with /train resume",
        )
    return notes


def _called(found: FoundReservation) -> str:
    kind = "reservation" if found.reservation.window is None else "block"
    return f"capacity {kind} {found.reservation.reservation_id}"


def _hours(hours: float) -> str:
    return f"{math.floor(hours * 10) / 10:g} hours"


def moment(at: datetime) -> str:
    """A moment as people read it, to the minute."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _with_notes(plan: Plan, *notes: str) -> Plan:
    return plan.model_copy(update={"warnings": [*notes, *plan.warnings]})
