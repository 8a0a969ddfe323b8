"""What `capacity=` means: instances on demand, or those of a capacity reservation.

`parameters` calls it while it reads a command. Pure: who asks EC2 about a reservation is given by
the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from stationmaster.domain.cluster.spec import Reservation
from stationmaster.domain.errors import BadCommand, BadParameter, NotAvailable, NotPossibleNow
from stationmaster.domain.planning.plan import Plan

CAPACITY: Final = "capacity"
ON_DEMAND: Final = "on-demand"
_PREFIX: Final = "odcr:"
# Source: EC2 API reference, CapacityReservationId: cr- and 17 hex digits.
_ID: Final = re.compile(r"cr-[0-9a-f]{17}")


@dataclass(frozen=True)
class FoundReservation:
    """A capacity reservation, as EC2 described it when it was typed."""

    reservation: Reservation
    instance_type: str
    available: int
    """Instances of it that nobody uses."""
    total: int
    ends_at: datetime | None = None
    """When EC2 ends it; None where only its owner does."""


FindReservation = Callable[[str], FoundReservation]
"""Asks EC2 about a reservation by its id. Raises a UserError that says why it cannot be used."""


def no_reservations(reservation_id: str) -> FoundReservation:
    """Find nothing: where AWS is not meant to be asked.

    Raises:
        NotPossibleNow: always.
    """
    raise NotPossibleNow(
        f"{CAPACITY}={_PREFIX}{reservation_id} names a reservation of the deployment's AWS "
        "account, and that is not asked here; type the command in the channel"
    )


def read_capacity(
    value: str | None, *, find_reservation: FindReservation
) -> FoundReservation | None:
    """The reservation that was typed; None for instances on demand.

    Raises:
        UserError: it is neither, or the reservation cannot be used.
    """
    if value in (None, ON_DEMAND):
        return None
    assert value is not None
    if value == "spot" or value.startswith("block:"):
        raise NotAvailable(
            f"{CAPACITY}={value[:80]} is not available in this version; nodes are {ON_DEMAND} "
            f"instances, or those of an on-demand capacity reservation with {_PREFIX}ID"
        )
    reservation_id = value.removeprefix(_PREFIX)
    if not value.startswith(_PREFIX) or not _ID.fullmatch(reservation_id):
        raise BadCommand(
            f"{CAPACITY}={value[:80]} is not accepted: expected {ON_DEMAND}, or {_PREFIX} and the "
            "id of a capacity reservation, such as odcr:cr-0123456789abcdef0"
        )
    return find_reservation(reservation_id)


def capacity_meant(value: str) -> str | None:
    """The same in the spelling that is accepted; None where nothing is meant."""
    found = re.search(r"cr-[0-9a-f]{17}(?![0-9a-f])", value.lower())
    if found:
        return f"{_PREFIX}{found[0]}"
    return ON_DEMAND if value.lower().replace("_", "-") in ("ondemand", ON_DEMAND) else None


def typed_capacity(reservation: Reservation | None) -> str | None:
    """The value as it is typed again."""
    return f"{_PREFIX}{reservation.reservation_id}" if reservation is not None else None


def reserved_type(
    found: FoundReservation | None,
    *,
    instance_type: str | None,
    on: str | None,
    eks_name: str,
    zone: str | None,
) -> str | None:
    """The instance type of the nodes: the reservation's where none was typed.

    `zone` is that of a file system that exists, where one was typed.

    Raises:
        BadCommand, BadParameter: the reservation does not go with what else was typed.
    """
    if found is None:
        return instance_type
    typed = f"{CAPACITY}={typed_capacity(found.reservation)}"
    if on is not None or eks_name:
        other = f"on={on}" if on is not None else f"cluster=eks:{eks_name}"
        raise BadCommand(
            f"{typed} cannot be used with {other}: that cluster's nodes are there; leave "
            f"{CAPACITY}= out"
        )
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
            f"capacity reservation {found.reservation.reservation_id} has {found.available} of "
            f"{found.total} {found.instance_type} free, and {nodes} are needed; use fewer nodes, "
            "or wait until others have left it"
        )


def plan_with_reservation(plan: Plan, found: FoundReservation | None) -> Plan:
    """The plan with what using a reservation means.

    Raises:
        NotPossibleNow: fewer of its instances are free than the run needs.
    """
    if found is None:
        return plan
    refuse_too_few(found, plan.nodes if plan.min_nodes is None else plan.min_nodes)
    name = found.reservation.reservation_id
    ends = f"; it ends at {found.ends_at:%Y-%m-%d %H:%M} UTC" if found.ends_at else ""
    note = (
        f"nodes are of capacity reservation {name} in zone {found.reservation.zone}, which has "
        f"{found.available} of {found.total} free{ends}; it stays as it is and is billed whether "
        "it is used or not"
    )
    return plan.model_copy(update={"warnings": [note, *plan.warnings]})
