"""EC2 capacity reservations and capacity blocks, which are only read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import aws_call
from stationmaster.domain.cluster.spec import Reservation, Window
from stationmaster.domain.durations import moment
from stationmaster.domain.errors import BadParameter, NotPossibleNow, PermanentError
from stationmaster.domain.keys.questions import FoundReservation

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef

RESERVATION_ACTIONS: Final = ("ec2:DescribeCapacityReservations",)
# Of a capacity block. Source: EC2 API reference, CapacityReservation, State.
_USABLE: Final = ("active", "scheduled", "delayed")
_ANOTHER: Final = "name another block, or use capacity=on-demand"
_UNKNOWN: Final = (
    "InvalidCapacityReservationId.NotFound",
    "InvalidCapacityReservationId.Malformed",
)


class Reservations:
    """Reads reservations of the account, and those that others share with it."""

    def __init__(
        self, client: EC2Client, *, subnet_ids: Sequence[str], now: Callable[[], datetime]
    ) -> None:
        self._client = client
        self._subnet_ids = subnet_ids
        self._now = now

    def look_up(self, reservation_id: str) -> FoundReservation:
        """Return what a reservation has, for runs of this deployment.

        Raises:
            BadParameter: there is none, or it is in a zone without a subnet of the deployment.
            NotPossibleNow: it is not active, or is a block that has ended or is not paid for yet.
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
        now, window = self._now(), _window(found)
        _check_state(found, window, now)
        is_ahead = window is not None and now < window.starts_at
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
                reservation_id=reservation_id, zone=zone, placement_group=group, window=window
            ),
            instance_type=found["InstanceType"],
            available=found["TotalInstanceCount" if is_ahead else "AvailableInstanceCount"],
            total=found["TotalInstanceCount"],
            ends_at=found.get("EndDate"),
            seen_at=now,
        )


def _window(found: CapacityReservationTypeDef) -> Window | None:
    """Return the time of a capacity block; None for an on-demand capacity reservation."""
    if found.get("ReservationType", "default") == "default":
        return None
    return Window(starts_at=found["StartDate"], ends_at=found["EndDate"])


def _check_state(found: CapacityReservationTypeDef, window: Window | None, now: datetime) -> None:
    name, state = found["CapacityReservationId"], found["State"]
    if window is None:
        if state != "active":
            raise NotPossibleNow(
                f"capacity reservation {name} is {state}, and only an active one has instances"
            )
        return
    if now >= window.ends_at:
        raise NotPossibleNow(f"capacity block {name} ended at {moment(window.ends_at)}; {_ANOTHER}")
    if now >= window.leave_at:
        raise NotPossibleNow(
            f"capacity block {name} ends at {moment(window.ends_at)}, and AWS takes its instances "
            f"back from {moment(window.taken_back_at)} on; {_ANOTHER}"
        )
    if state not in _USABLE:
        wait = "; wait until AWS has taken the payment" if state == "payment-pending" else ""
        raise NotPossibleNow(
            f"capacity block {name} is {state}, and only one that is scheduled or active can be "
            f"used{wait or f'; {_ANOTHER}'}"
        )
