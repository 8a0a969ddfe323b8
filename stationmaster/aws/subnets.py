"""EC2 subnets: where a cluster's nodes can run. The network stack makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stationmaster.aws.calls import Adapter, aws_call
from stationmaster.domain.errors import PermanentError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


class Subnets(Adapter):
    """Reads in which zones nodes may be."""

    _client: EC2Client

    def zones(self) -> dict[str, str]:
        """Return the availability zone of each subnet for nodes, in the order of settings."""
        return zones_of(self._client, self._settings.subnet_ids)

    def zones_offering(self, instance_type: str) -> set[str]:
        """List the region's zones in which EC2 offers an instance type at all."""
        return zones_offering(self._client, instance_type)


def zones_of(client: EC2Client, subnet_ids: Sequence[str]) -> dict[str, str]:
    """Return the availability zone of each subnet, in the same order."""
    with aws_call("reading subnets"):
        found = client.describe_subnets(SubnetIds=list(subnet_ids))["Subnets"]
    zone_of = {each["SubnetId"]: each["AvailabilityZone"] for each in found}
    return {subnet_id: zone_of[subnet_id] for subnet_id in subnet_ids}


def zones_offering(client: EC2Client, instance_type: str) -> set[str]:
    """List the region's zones in which EC2 offers an instance type at all."""
    with aws_call(f"asking where {instance_type} is offered"):
        answer = client.describe_instance_type_offerings(
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [instance_type]}],
        )
    return {offer["Location"] for offer in answer["InstanceTypeOfferings"]}


def choose_subnet(
    zone_of: Mapping[str, str],
    *,
    offered: set[str],
    instance_type: str,
    region: str,
    zone: str = "",
) -> str:
    """Choose the first private subnet whose availability zone offers the instance type.

    Args:
        zone_of: the zone of each subnet that nodes may be in.
        offered: the zones that offer the instance type.
        zone: the one that it has to be, "" for any.

    Raises:
        PermanentError: none of their zones offers it, or none is in `zone`.
    """
    usable = {each: there for each, there in zone_of.items() if zone in ("", there)}
    if not usable:
        raise PermanentError(f"no subnet that nodes may be in is in zone {zone}")
    for subnet_id, there in usable.items():
        if there in offered:
            return subnet_id
    raise PermanentError(
        f"{instance_type} is offered in none of the zones {', '.join(sorted(usable.values()))}"
        f" of region {region} that nodes may be in; use another instance or region"
    )
