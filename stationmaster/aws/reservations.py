"""EC2 capacity reservations: looked at only. Whoever made one keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import aws_call
from stationmaster.domain.cluster.spec import Reservation
from stationmaster.domain.commands.capacity import FoundReservation
from stationmaster.domain.errors import BadParameter, NotPossibleNow, PermanentError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef

RESERVATION_ACTIONS: Final = ("ec2:DescribeCapacityReservations",)
_UNKNOWN: Final = (
    "InvalidCapacityReservationId.NotFound",
    "InvalidCapacityReservationId.Malformed",
)


class Reservations:
    """Reads reservations of the account, and those that others share with it."""

    def __init__(self, client: EC2Client, *, subnet_ids: Sequence[str]) -> None:
        self._client = client
        self._subnet_ids = subnet_ids

    def look_up(self, reservation_id: str) -> FoundReservation:
        """What a reservation has, for runs of this deployment.

        Raises:
            BadParameter: there is none, or it is in a zone without a subnet of the deployment.
            NotPossibleNow: it is not active.
            TransientError, PermanentError: EC2 does not answer, or refuses to.
        """
        listed: list[CapacityReservationTypeDef] = []
        try:
            with aws_call(f"reading capacity reservation {reservation_id}"):
                listed = self._client.describe_capacity_reservations(
                    CapacityReservationIds=[reservation_id]
                )["CapacityReservations"]
        except PermanentError as exc:
            if not any(code in str(exc) for code in _UNKNOWN):
                raise
        if not listed:
            raise BadParameter(
                f"capacity reservation {reservation_id} does not exist in this account and region; "
                "check its id with aws ec2 describe-capacity-reservations"
            )
        found = listed[0]
        if found.get("ReservationType", "default") != "default":
            raise BadParameter(
                f"capacity reservation {reservation_id} is a capacity block, and only on-demand "
                "capacity reservations can be used in this version"
            )
        if found["State"] != "active":
            raise NotPossibleNow(
                f"capacity reservation {reservation_id} is {found['State']}, and only an active "
                "one has instances"
            )
        zone = found["AvailabilityZone"]
        with aws_call("reading subnets"):
            subnets = self._client.describe_subnets(SubnetIds=list(self._subnet_ids))["Subnets"]
        zones = sorted({subnet["AvailabilityZone"] for subnet in subnets})
        if zone not in zones:
            raise BadParameter(
                f"capacity reservation {reservation_id} is in zone {zone}, and nodes of this "
                f"deployment can be in {', '.join(zones)} only"
            )
        group = found.get("PlacementGroupArn", "").rpartition("/")[2]
        return FoundReservation(
            reservation=Reservation(
                reservation_id=reservation_id, zone=zone, placement_group=group
            ),
            instance_type=found["InstanceType"],
            available=found["AvailableInstanceCount"],
            total=found["TotalInstanceCount"],
            ends_at=found.get("EndDate"),
        )
