"""`capacity=`: instances on demand, spot instances, or those of a reservation.

A capacity block is a reservation for some days that was paid for in advance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

from stationmaster.domain.cluster.spec import LEAVE_S, Reservation
from stationmaster.domain.durations import moment
from stationmaster.domain.errors import BadCommand, BadParameter, NotPossibleNow
from stationmaster.domain.keys import eks_cluster, file_system, kept_cluster, machines
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.keys.questions import FoundReservation
from stationmaster.domain.planning.cost import NodeSource, stop_deadline
from stationmaster.domain.planning.plan import Plan

_ON_DEMAND: Final = "on-demand"
_SPOT: Final = "spot"
_RESERVATION: Final = "odcr:"
_BLOCK: Final = "block:"
# Source: EC2 API reference, CapacityReservationId: cr- and 17 hex digits.
_ID: Final = re.compile(r"cr-[0-9a-f]{17}")
# From the request to stop to the trainer's notice of it: a clock that rings late, and its pods.
_UNTIL_STOPPED_S: Final = 300


def _meant(value: str) -> str | None:
    """Spell the value as it is accepted; None where nothing is meant."""
    lowered = value.lower().replace("_", "-")
    found = re.search(r"cr-[0-9a-f]{17}(?![0-9a-f])", lowered)
    if found:
        return f"{_BLOCK if 'block' in lowered else _RESERVATION}{found[0]}"
    if lowered in (_SPOT, "spots", "spot-instances"):
        return _SPOT
    return _ON_DEMAND if lowered in ("ondemand", _ON_DEMAND) else None


def _typed(own: Any) -> str | None:
    if own.reservation is None:
        return _SPOT if own.is_spot else None
    return f"{_BLOCK if own.is_prepaid else _RESERVATION}{own.reservation.reservation_id}"


CAPACITY: Final = Key(
    name="capacity",
    help="on-demand, spot, odcr:ID for the instances of an on-demand capacity reservation, or "
    "block:ID for those of a capacity block, which a run waits for and leaves in time; these "
    "two decide type and zone and stay as they are",
    meanings=("spot", "capacity_type", "reservation", "capacity_block"),
    choices=(_ON_DEMAND, _SPOT),
    meant=_meant,
    turn=4,
    typed=_typed,
)


class Option(Part):
    """Where the training nodes of a new cluster come from."""

    reservation: Reservation | None = None
    """What the nodes of its own cluster are taken from; None where they are of no reservation."""
    is_spot: bool = False
    """Whether they are spot instances."""

    @property
    def is_prepaid(self) -> bool:
        """Whether its nodes are of a capacity block, which was paid for when it was bought."""
        return self.reservation is not None and self.reservation.window is not None


def read(typed: Typed) -> Option:
    """Read what was typed, and ask about a reservation."""
    value = typed.get(CAPACITY)
    if value is None or value in (_ON_DEMAND, _SPOT):
        return Option(is_spot=value == _SPOT)
    kind = next((each for each in (_RESERVATION, _BLOCK) if value.startswith(each)), None)
    if kind is None or not _ID.fullmatch(value.removeprefix(kind)):
        raise BadCommand(
            f"capacity={value[:80]} is not accepted: expected {_ON_DEMAND}, {_SPOT}, or "
            f"{_RESERVATION} or {_BLOCK} and the id of a capacity reservation or capacity block, "
            "such as odcr:cr-0123456789abcdef0"
        )
    found = typed.ask.find_reservation(value.removeprefix(kind))
    option = Option(reservation=found.reservation)
    if _typed(option) != value:
        what = "a capacity block" if option.is_prepaid else "an on-demand capacity reservation"
        raise BadParameter(
            f"capacity={value} names {what}, not what it says; type capacity={_typed(option)}"
        )
    return option


def found_of(start: Start) -> FoundReservation | None:
    """Return what EC2 said of the reservation that was typed."""
    reservation = start.part(Option).reservation
    return start.ask.find_reservation(reservation.reservation_id) if reservation else None


def source_of(start: Start) -> NodeSource:
    """Return where the nodes come from, for a plan."""
    own, found = start.part(Option), found_of(start)
    if found is None:
        is_guest = bool(start.part(eks_cluster.Option).eks_name)
        return NodeSource(words="spot instances" if own.is_spot else "", is_prepaid=is_guest)
    return NodeSource(words=f"of {_called(found)}", is_prepaid=own.is_prepaid, is_placed=True)


def instance_of(start: Start) -> str | None:
    """Return the instance type of the nodes: the reservation's where none was typed."""
    found = found_of(start)
    return start.part(machines.Option).instance_type if found is None else found.instance_type


def refuse(start: Start) -> None:
    """Refuse what other keys say of the nodes and a reservation or spot instances contradict."""
    own, found, of_cluster = start.part(Option), found_of(start), start.part(kept_cluster.Option)
    on, eks_name = of_cluster.on, start.part(eks_cluster.Option).eks_name
    typed = f"capacity={_typed(own)}"
    if (found is not None or own.is_spot) and (on is not None or eks_name):
        other = f"on={on}" if on is not None else f"cluster=eks:{eks_name}"
        raise BadCommand(
            f"{typed} cannot be used with {other}: that cluster's nodes are there; leave "
            "capacity= out"
        )
    if found is None:
        return
    if of_cluster.keep_s:
        refuse_kept_block(own, "keep=")
    instance_type = start.part(machines.Option).instance_type
    if instance_type not in (None, found.instance_type):
        raise BadParameter(
            f"{typed} is for {found.instance_type} and instance={instance_type} asks for others; "
            "leave instance= out"
        )
    storage = file_system.found_of(start)
    if storage is not None and storage.zone != found.reservation.zone:
        raise BadParameter(
            f"{typed} is in zone {found.reservation.zone} and the file system in {storage.zone}; "
            "nodes and file system are in one zone"
        )


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


def refuse_kept_block(own: Option, key: str) -> None:
    """Refuse to keep nodes that AWS takes back at a fixed time; `key` is what would keep them.

    Raises:
        BadCommand: naming both.
    """
    if own.is_prepaid:
        raise BadCommand(
            f"capacity={_typed(own)} cannot be used with {key}: AWS takes the nodes back when the "
            "block ends; use it for one run, without keep="
        )


def planned(start: Start, plan: Plan) -> Reservation | None:
    """Return the reservation; of a block, with how long before its end the run has to leave it."""
    reservation = start.part(Option).reservation
    if reservation is None or reservation.window is None:
        return reservation
    needed = stop_deadline(step_s=plan.step_time_s, write_s=plan.checkpoint_write_s)
    leave_s = max(LEAVE_S, needed + _UNTIL_STOPPED_S)
    window = reservation.window.model_copy(update={"leave_s": leave_s})
    return reservation.model_copy(update={"window": window})


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say what the choice of capacity means."""
    if start.part(Option).is_spot:
        yield _SPOT_NOTE
    found = found_of(start)
    if found is None:
        return
    refuse_too_few(found, plan.nodes if plan.min_nodes is None else plan.min_nodes)
    there = (
        f"nodes are of {_called(found)} in zone {found.reservation.zone}, which has "
        f"{found.available} of {found.total} free"
    )
    if start.part(Option).is_prepaid:
        yield from _block_notes(start, plan, there)
        return
    ends = f"; it ends at {moment(found.ends_at)}" if found.ends_at else ""
    yield f"{there}{ends}; it stays as it is and is billed whether it is used or not"


_SPOT_NOTE: Final = (
    "nodes are spot instances: AWS may take each back two minutes after it says so, the run then "
    "goes on from its last checkpoint once there is another; what they cost is not known before, "
    "so their price here is the one on demand, which is the most that it can be"
)


def _block_notes(start: Start, plan: Plan, there: str) -> list[str]:
    reservation, found = planned(start, plan), found_of(start)
    assert reservation is not None
    assert reservation.window is not None
    window, now = reservation.window, found.seen_at if found else None
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


FAMILY: Final = Family(keys=(CAPACITY,), read=read, refuse=refuse, note=note)
