"""EC2's capacity reservations, on demand and in blocks, which moto 5.2.5 does not have.

One is made, or a block is found and bought; both are described. What runs
in one is counted from the instances that the node groups of `local.aws.services.eks_nodes` launch
with it as their target.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response
from moto.ec2.utils import random_id

from stationmaster.local.aws.emulation import current

_GONE = ("terminated", "shutting-down")
# Of a block: no instance is launched in its last half hour. Source: EC2 user guide, "Capacity
# Blocks for ML", how they work.
_LAST: Final = timedelta(minutes=30)


@dataclass
class CapacityReservation:
    """One reservation."""

    instance_type: str
    zone: str
    total: int
    placement_group_arn: str = ""
    window: tuple[datetime, datetime] | None = None
    """Start and end of a capacity block."""
    id: str = field(default_factory=lambda: random_id("cr"))
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def state(self) -> str:
        """As EC2 calls it; that of a block follows from the time."""
        if self.window is None:
            return "active"
        starts_at, ends_at = self.window
        now = datetime.now(UTC)
        return "scheduled" if now < starts_at else "active" if now < ends_at else "expired"


def reservations(backend: Any) -> dict[str, CapacityReservation]:
    """Return the reservations of an EC2 back end, by their ids."""
    found: dict[str, CapacityReservation] = backend.__dict__.setdefault("capacity_reservations", {})
    return found


def available(backend: Any, reservation: CapacityReservation) -> int:
    """Instances of it that nobody runs; a block has none before its start and after its end."""
    if reservation.state != "active":
        return 0
    used = sum(
        getattr(instance, "capacity_reservation_id", None) == reservation.id
        and instance.state not in _GONE
        for each in backend.reservations.values()
        for instance in each.instances
    )
    return max(0, reservation.total - used)


def why_refused(
    backend: Any,
    reservation_id: str,
    *,
    instance_type: str,
    zone: str,
    count: int,
    is_block: bool = False,
) -> str:
    """Say why EC2 launches no `count` instances in a reservation; "" where it does.

    Source: EC2 user guide, "Instance launch issues" and the error codes of RunInstances.
    """
    found = reservations(backend).get(reservation_id)
    if found is None or found.state != "active":
        return f"InvalidCapacityReservationId.NotFound - {reservation_id} is not active"
    if is_block is not (found.window is not None):
        return (
            "InvalidParameterCombination - The market type of the request and the type of capacity "
            f"reservation {reservation_id} do not go together."
        )
    if found.window is not None and datetime.now(UTC) >= found.window[1] - _LAST:
        return f"ReservationCapacityExceeded - {reservation_id} is about to end"
    fits = (found.instance_type, found.zone) == (instance_type, zone)
    if fits and available(backend, found) >= count:
        return ""
    return (
        "ReservationCapacityExceeded - The requested reservation does not have sufficient "
        "compatible and available capacity for this request."
    )


def _described(backend: Any, reservation: CapacityReservation) -> dict[str, Any]:
    account, region = current().account_id, backend.region_name
    described = {
        "CapacityReservationId": reservation.id,
        "CapacityReservationArn": f"arn:aws:ec2:{region}:{account}:capacity-reservation/"
        f"{reservation.id}",
        "OwnerId": account,
        "InstanceType": reservation.instance_type,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": reservation.zone,
        "Tenancy": "default",
        "TotalInstanceCount": reservation.total,
        "AvailableInstanceCount": available(backend, reservation),
        "EbsOptimized": False,
        "EphemeralStorage": False,
        "State": reservation.state,
        "EndDateType": "unlimited" if reservation.window is None else "limited",
        "InstanceMatchCriteria": "targeted",
        "CreateDate": reservation.created_at,
        "ReservationType": "default" if reservation.window is None else "capacity-block",
    }
    if reservation.window is not None:
        described["StartDate"], described["EndDate"] = reservation.window
    if reservation.placement_group_arn:
        described["PlacementGroupArn"] = reservation.placement_group_arn
    return described


def _create(self: Any) -> ActionResult:
    made = CapacityReservation(
        instance_type=self._get_param("InstanceType"),
        zone=self._get_param("AvailabilityZone"),
        total=int(self._get_param("InstanceCount")),
        placement_group_arn=self._get_param("PlacementGroupArn") or "",
    )
    reservations(self.ec2_backend)[made.id] = made
    return ActionResult({"CapacityReservation": _described(self.ec2_backend, made)})


def _describe(self: Any) -> ActionResult:
    known = reservations(self.ec2_backend)
    wanted = self._get_param("CapacityReservationIds", []) or list(known)
    for each in wanted:
        if each not in known:
            raise EC2ClientError(
                "InvalidCapacityReservationId.NotFound",
                f"The capacity reservation ID '{each}' does not exist",
            )
    found = [_described(self.ec2_backend, known[each]) for each in wanted]
    return ActionResult({"CapacityReservations": found})


def _offer(self: Any) -> ActionResult:
    """Return one block of what is asked for, as early as it may be; its id says what it is."""
    hours = int(self._get_param("CapacityDurationHours"))
    asked = self._get_param("StartDateRange")
    # Answers name whole seconds, so the block must begin at one: who is told 12:00:05 may launch
    # then.
    starts_at = (asked.replace(tzinfo=UTC) if asked else datetime.now(UTC)).replace(microsecond=0)
    offered = {
        "InstanceType": self._get_param("InstanceType"),
        "InstanceCount": int(self._get_param("InstanceCount", 1)),
        "AvailabilityZone": f"{self.ec2_backend.region_name}b",
        "StartDate": starts_at,
        "EndDate": starts_at + timedelta(hours=hours),
        "CapacityBlockDurationHours": hours,
        "Tenancy": "default",
        "CurrencyCode": "USD",
        "UpfrontFee": "0.0",
    }
    named = json.dumps(offered, default=lambda at: at.isoformat())
    identity = f"cb-{urlsafe_b64encode(named.encode()).decode()}"
    return ActionResult(
        {"CapacityBlockOfferings": [{"CapacityBlockOfferingId": identity, **offered}]}
    )


def _buy(self: Any) -> ActionResult:
    offered = json.loads(
        urlsafe_b64decode(self._get_param("CapacityBlockOfferingId").removeprefix("cb-"))
    )
    made = CapacityReservation(
        instance_type=offered["InstanceType"],
        zone=offered["AvailabilityZone"],
        total=offered["InstanceCount"],
        window=(
            datetime.fromisoformat(offered["StartDate"]),
            datetime.fromisoformat(offered["EndDate"]),
        ),
    )
    reservations(self.ec2_backend)[made.id] = made
    return ActionResult({"CapacityReservation": _described(self.ec2_backend, made)})


def apply() -> None:
    """Add what is missing."""
    EC2Response.create_capacity_reservation = _create
    EC2Response.describe_capacity_reservations = _describe
    EC2Response.describe_capacity_block_offerings = _offer
    EC2Response.purchase_capacity_block = _buy
