"""EC2's on-demand capacity reservations, which moto 5.2.5 does not have.

One is made, described and cancelled. What runs in it is counted from the instances that the
node groups of `local.aws.services.eks_nodes` launch with it as their target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response
from moto.ec2.utils import random_id

from local.aws.emulation import current

_GONE = ("terminated", "shutting-down")


@dataclass
class CapacityReservation:
    """One reservation."""

    instance_type: str
    zone: str
    total: int
    placement_group_arn: str = ""
    state: str = "active"
    id: str = field(default_factory=lambda: random_id("cr"))
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))


def reservations(backend: Any) -> dict[str, CapacityReservation]:
    """The reservations of an EC2 back end, by their ids."""
    found: dict[str, CapacityReservation] = backend.__dict__.setdefault("capacity_reservations", {})
    return found


def available(backend: Any, reservation: CapacityReservation) -> int:
    """Instances of it that nobody runs."""
    used = sum(
        getattr(instance, "capacity_reservation_id", None) == reservation.id
        and instance.state not in _GONE
        for each in backend.reservations.values()
        for instance in each.instances
    )
    return max(0, reservation.total - used)


def why_refused(
    backend: Any, reservation_id: str, *, instance_type: str, zone: str, count: int
) -> str:
    """Why EC2 launches no `count` instances in a reservation; "" where it does.

    Source: EC2 user guide, "Instance launch issues" and the error codes of RunInstances.
    """
    found = reservations(backend).get(reservation_id)
    if found is None or found.state != "active":
        return f"InvalidCapacityReservationId.NotFound - {reservation_id} is not active"
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
        "EndDateType": "unlimited",
        "InstanceMatchCriteria": "targeted",
        "CreateDate": reservation.created_at,
        "ReservationType": "default",
    }
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


def _cancel(self: Any) -> ActionResult:
    found = reservations(self.ec2_backend).get(self._get_param("CapacityReservationId"))
    if found is None:
        raise EC2ClientError(
            "InvalidCapacityReservationId.NotFound", "The capacity reservation does not exist"
        )
    found.state = "cancelled"
    return ActionResult({"Return": True})


def apply() -> None:
    """Add what is missing."""
    EC2Response.create_capacity_reservation = _create
    EC2Response.describe_capacity_reservations = _describe
    EC2Response.cancel_capacity_reservation = _cancel
