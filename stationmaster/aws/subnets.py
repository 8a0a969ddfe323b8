"""EC2 subnets: where a cluster's nodes can run. The network stack makes them; nothing here does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stationmaster.aws.calls import aws_call
from stationmaster.domain.errors import PermanentError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def choose_subnet(
    client: EC2Client, *, subnet_ids: Sequence[str], instance_type: str, region: str, zone: str = ""
) -> str:
    """The first of the private subnets whose availability zone offers the instance type.

    `zone` is the one that it has to be, "" for any.

    Raises:
        PermanentError: none of their zones offers it, or none is in `zone`.
    """
    with aws_call("reading subnets"):
        subnets = client.describe_subnets(SubnetIds=list(subnet_ids))
    zone_of = {
        s["SubnetId"]: s["AvailabilityZone"]
        for s in subnets["Subnets"]
        if zone in ("", s["AvailabilityZone"])
    }
    if not zone_of:
        raise PermanentError(f"no subnet that nodes may be in is in zone {zone}")
    with aws_call(f"asking where {instance_type} is offered"):
        answer = client.describe_instance_type_offerings(
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [instance_type]}],
        )
    offered = {offer["Location"] for offer in answer["InstanceTypeOfferings"]}
    for subnet_id in subnet_ids:
        if zone_of.get(subnet_id) in offered:
            return subnet_id
    raise PermanentError(
        f"{instance_type} is offered in none of the zones {', '.join(sorted(zone_of.values()))}"
        f" of region {region} that nodes may be in; use another instance or region"
    )
