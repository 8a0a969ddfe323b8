"""What a node group's launch template says, and why EKS would refuse it.

EKS reads the template when a node group is created, and lets EC2 try it: what is wrong is refused
there and then. Cards and interfaces of instance types are AWS's own data as moto ships them.

Sources: EKS user guide, "Customize managed nodes with launch templates" (settings that must not be
in a template); EC2 user guide, "Elastic network interfaces" (network cards) and "Elastic Fabric
Adapter". Where a sentence of AWS's is public, the check names where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.utils import convert_tag_spec

from stationmaster.local.aws.faults import FirstCalls
from stationmaster.local.aws.services.eks_records import Launch
from stationmaster.local.aws.wire import ApiError

DEFAULT_INSTANCE_TYPE: Final = "t3.medium"
_DEFAULT_INTERFACE: Final = "interface"


def read_template(params: dict[str, Any], *, ec2: Any, first_calls: FirstCalls) -> dict[str, Any]:
    """Return the data of the launch template that a CreateNodegroup names; empty without one.

    Raises:
        ApiError: there is no such template, or it is not known yet.
    """
    wanted = params.get("launchTemplate")
    if not wanted:
        return {}
    for template in list(ec2.launch_templates.values()):
        if wanted.get("id", template.id) == template.id and (
            wanted.get("name", template.name) == template.name
        ):
            if first_calls.is_unknown(str(template.id), to="CreateNodegroup"):
                break
            version = template.get_version(wanted.get("version", "$Default"))
            return dict(version.data)
    raise _refused(
        f"The specified launch template, with template name or ID "
        f"{wanted.get('name') or wanted.get('id')}, does not exist."
    )


def launch_of(params: dict[str, Any], data: dict[str, Any], *, default_group_id: str) -> Launch:
    """Return what the instances of the node group are launched with.

    Raises:
        ApiError: the template has what belongs into the request, or what no instance can have.
    """
    if params.get("instanceTypes") and data.get("InstanceType"):
        # Source: https://github.com/terraform-aws-modules/terraform-aws-eks/issues/1386
        raise _refused("Cannot specify instance types in launch template and API Request")
    capacity_type = params.get("capacityType", "ON_DEMAND")
    _check_market(capacity_type, data)
    types = params.get("instanceTypes") or [data.get("InstanceType") or DEFAULT_INSTANCE_TYPE]
    interfaces = tuple(data.get("NetworkInterfaces") or ())
    group_ids = tuple(data.get("SecurityGroupIds") or ())
    placement_group = str((data.get("Placement") or {}).get("GroupName") or "")
    for name in types:
        found = INSTANCE_TYPES.get(name)
        if found is None:
            continue  # a type that AWS no longer describes
        _check_cards(name, found["NetworkInfo"], interfaces)
        strategies = found.get("PlacementGroupInfo", {}).get("SupportedStrategies", [])
        if placement_group and "cluster" not in strategies:
            raise unfit(f"The instance type {name} cannot be in a cluster placement group.")
    if interfaces and group_ids:
        raise unfit(
            "Network interfaces and an instance-level security groups may not be specified on the "
            "same request"
        )
    if not interfaces and not group_ids:
        group_ids = (default_group_id,)
    return Launch(
        instance_type=types[0],
        group_ids=group_ids,
        interfaces=interfaces,
        volumes=tuple(data.get("BlockDeviceMappings") or ()),
        placement_group=placement_group,
        reservation_id=_reservation(data),
        capacity_type=capacity_type,
        tags=convert_tag_spec(data.get("TagSpecifications") or []),
    )


def _reservation(data: dict[str, Any]) -> str:
    """Return the capacity reservation that a template has as its target."""
    specified = data.get("CapacityReservationSpecification") or {}
    target = specified.get("CapacityReservationTarget") or {}
    return str(target.get("CapacityReservationId") or "")


def _check_market(capacity_type: str, data: dict[str, Any]) -> None:
    """Check how instances are bought: by the node group; of a block, by its template as well.

    Source: EKS user guide, "Create a managed node group with Capacity Blocks for ML": a request
    that lacks any of them is rejected.
    """
    market = (data.get("InstanceMarketOptions") or {}).get("MarketType", "")
    if market == "spot":
        raise _refused("Launch template should not request Spot Instances: use the capacity type.")
    is_block = capacity_type == "CAPACITY_BLOCK"
    has_all = market == "capacity-block" and _reservation(data) and data.get("InstanceType")
    if is_block and not has_all:
        raise _refused(
            "The capacity type CAPACITY_BLOCK needs a launch template with the market type "
            "capacity-block, a capacity reservation as its target and an instance type."
        )
    if market and not is_block:
        raise _refused(f"The market type {market} needs the capacity type CAPACITY_BLOCK.")


def _check_cards(name: str, network: dict[str, Any], interfaces: Iterable[dict[str, Any]]) -> None:
    """Refuse interfaces that the instance type has no cards for."""
    cards = {card["NetworkCardIndex"]: card for card in network["NetworkCards"]}
    taken: Counter[tuple[int, int]] = Counter()
    fabric: Counter[int] = Counter()
    for each in interfaces:
        index, device = int(each.get("NetworkCardIndex", 0)), int(each.get("DeviceIndex", 0))
        kind = each.get("InterfaceType") or _DEFAULT_INTERFACE
        card = cards.get(index)
        if card is None:
            raise unfit(
                f"Network card index {index} is not supported by the instance type {name}, which "
                f"has {len(cards)} network card(s)."
            )
        if kind not in card["InterfaceTypes"]:
            raise unfit(
                f"Interface type {kind} is not supported on network card {index} of the instance "
                f"type {name}."
            )
        if device >= card["MaximumNetworkInterfaces"]:
            raise unfit(
                f"Device index {device} exceeds what network card {index} of the instance type "
                f"{name} has: {card['MaximumNetworkInterfaces']} interfaces."
            )
        if (index, device) == (0, 0) and kind == "efa-only":
            raise unfit("An EFA-only network interface cannot be the primary network interface.")
        taken[index, device] += 1
        fabric[index] += kind != _DEFAULT_INTERFACE
    _check_together(name, network, taken, fabric)


def _check_together(
    name: str, network: dict[str, Any], taken: Counter[tuple[int, int]], fabric: Counter[int]
) -> None:
    twice = [place for place, count in taken.items() if count > 1]
    if twice:
        card, device = twice[0]
        raise unfit(
            f"Each network interface requires a unique device index: {device} of network card "
            f"{card} is given twice."
        )
    if taken and (0, 0) not in taken:
        raise unfit("A primary network interface, device 0 of network card 0, is required.")
    if any(count > 1 for count in fabric.values()):
        raise unfit("Only one EFA network interface is supported per network card.")
    most = (network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0)
    if fabric.total() > most:
        raise unfit(f"The instance type {name} has {most} EFA network interfaces at most.")


def _refused(sentence: str) -> ApiError:
    return ApiError("InvalidRequestException", sentence)


def unfit(sentence: str) -> ApiError:
    """Return what EKS answers where EC2 refuses a template: EC2's own sentence, after EKS's.

    Source: https://github.com/eksctl-io/eksctl/issues/1989
    """
    return _refused(f"You must use a valid fully-formed launch template. {sentence}")
