"""EC2: placement groups exist, what is used cannot be deleted, machines have this one's GPUs.

moto 5.2.5 has no placement groups, deletes security groups that network interfaces or other groups
still use (AWS: DependencyViolation), keeps the interfaces of terminated instances, and leaves
launch templates out of the tagging API. Its instance types are AWS's own, and stay so but
for their GPUs where the account represents one machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from moto.core.resource_tagging import TaggedResource
from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import (
    DependencyViolationError,
    EC2ClientError,
    InvalidSecurityGroupNotFoundError,
)
from moto.ec2.models import EC2Backend
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix, random_id

from stationmaster.local.aws.emulation import running

_GONE = ("terminated", "shutting-down")

_create_security_group = EC2Backend.create_security_group
_describe_security_groups = EC2Backend.describe_security_groups
_authorize_ingress = EC2Backend.authorize_security_group_ingress
_authorize_egress = EC2Backend.authorize_security_group_egress
_create_launch_template = EC2Backend.create_launch_template
_delete_security_group = EC2Backend.delete_security_group
_terminate_instances = EC2Backend.terminate_instances
_iter_tagged = EC2Backend.iter_tagged_resources
_describe_instance_types = EC2Backend.describe_instance_types


@dataclass
class PlacementGroup:
    """One placement group."""

    name: str
    strategy: str
    id: str = field(default_factory=lambda: random_id("pg"))


def _groups(backend: Any) -> dict[str, PlacementGroup]:
    groups: dict[str, PlacementGroup] = backend.__dict__.setdefault("placement_groups", {})
    return groups


def _described(response: Any, group: PlacementGroup) -> dict[str, Any]:
    backend = response.ec2_backend
    return {
        "GroupName": group.name,
        "GroupId": group.id,
        "State": "available",
        "Strategy": group.strategy,
        "GroupArn": _group_arn(backend, group),
        "Tags": [{"Key": k, "Value": v} for k, v in backend.tags.get(group.id, {}).items()],
    }


def _group_arn(backend: Any, group: PlacementGroup) -> str:
    return f"arn:aws:ec2:{backend.region_name}:{backend.account_id}:placement-group/{group.name}"


def _create_placement_group(self: Any) -> ActionResult:
    backend = self.ec2_backend
    name = self._get_param("GroupName")
    if name in _groups(backend):
        raise EC2ClientError(
            "InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists."
        )
    group = _groups(backend)[name] = PlacementGroup(name, strategy=self._get_param("Strategy"))
    tags = self._parse_tag_specification().get("placement-group", {})
    if tags:
        backend.create_tags([group.id], tags)
    return ActionResult({"PlacementGroup": _described(self, group)})


def _matches(described: dict[str, Any], filters: dict[str, list[str]]) -> bool:
    tags = {f"tag:{tag['Key']}": tag["Value"] for tag in described["Tags"]}
    if other := next((name for name in filters if not name.startswith("tag:")), None):
        raise EC2ClientError("InvalidParameterValue", f"The filter '{other}' is invalid")
    return all(tags.get(name) in values for name, values in filters.items())


def _describe_placement_groups(self: Any) -> ActionResult:
    filters = self._filters_from_querystring()
    found = [_described(self, group) for group in _groups(self.ec2_backend).values()]
    return ActionResult({"PlacementGroups": [each for each in found if _matches(each, filters)]})


def _in_use(name: str) -> EC2ClientError:
    """Source: https://github.com/scylladb/scylla-cluster-tests/issues/6742"""
    return EC2ClientError(
        "InvalidPlacementGroup.InUse",
        f"The placement group '{name}' is in use and may not be deleted.",
    )


def _delete_placement_group(self: Any) -> ActionResult:
    backend = self.ec2_backend
    name = self._get_param("GroupName")
    group = _groups(backend).get(name)
    if group is None:
        raise EC2ClientError(
            "InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown."
        )
    if any(
        instance.placement.group_name == name and instance.state not in _GONE
        for instance in backend.all_instances()
    ):
        raise _in_use(name)
    emulation = running()
    if emulation is not None and emulation.first_calls.is_in_use(group.id):
        raise _in_use(name)
    del _groups(backend)[name]
    backend.tags.pop(group.id, None)
    return EmptyResult()


def _made(self: Any, create: Any, arguments: Any, named: Any) -> Any:
    """Create something that others may know only a while later."""
    found = create(self, *arguments, **named)
    emulation = running()
    if emulation is not None:
        emulation.first_calls.made(str(found.id))
    return found


def _is_unknown(group_id: str, operation: str) -> bool:
    emulation = running()
    return emulation is not None and emulation.first_calls.is_unknown(group_id, to=operation)


def _create_group(self: Any, *arguments: Any, **named: Any) -> Any:
    if named.get("is_default"):  # it comes with its VPC, and is there when the VPC is
        return _create_security_group(self, *arguments, **named)
    return _made(self, _create_security_group, arguments, named)


def _create_template(self: Any, *arguments: Any, **named: Any) -> Any:
    return _made(self, _create_launch_template, arguments, named)


def _described_groups(self: Any, *arguments: Any, **named: Any) -> list[Any]:
    found = _describe_security_groups(self, *arguments, **named)
    return [group for group in found if not _is_unknown(group.id, "DescribeSecurityGroups")]


def _authorize(name: str, authorize: Any) -> Any:
    def known_only(self: Any, group_name_or_id: str, *arguments: Any, **named: Any) -> Any:
        if _is_unknown(group_name_or_id, name):
            raise InvalidSecurityGroupNotFoundError(group_name_or_id)
        return authorize(self, group_name_or_id, *arguments, **named)

    return known_only


def _referenced_by(backend: Any, group_id: str) -> str | None:
    """Return the id of what still uses a security group."""
    for eni in backend.enis.values():
        if any(group.id == group_id for group in eni.group_set):
            return str(eni.id)
    for groups in backend.groups.values():
        for other in groups.values():
            if other.id == group_id:
                continue
            for rule in [*other.ingress_rules, *other.egress_rules]:
                if rule.source_group.get("GroupId") == group_id:
                    return str(other.id)
    return None


def _delete_group(self: Any, name: str | None = None, group_id: str | None = None) -> None:
    user = _referenced_by(self, group_id) if group_id else None
    if user is not None:
        raise DependencyViolationError(f"resource {group_id} has a dependent object ({user})")
    _delete_security_group(self, name, group_id)


def _terminate(self: Any, instance_ids: list[str]) -> Any:
    """Terminate instances, and free the network interfaces that end with them."""
    answer = _terminate_instances(self, instance_ids)
    for eni_id, eni in list(self.enis.items()):
        if eni.instance is not None and eni.instance.id in instance_ids:
            del self.enis[eni_id]
    return answer


def _tagged(self: Any) -> Iterator[TaggedResource]:
    """Yield what is tagged at one moment: node groups start and end instances while others look."""
    emulation = running()
    with emulation.locks["ec2"] if emulation is not None else nullcontext():
        found = list(_tagged_now(self))
    yield from found


def _tagged_now(self: Any) -> Iterator[TaggedResource]:
    gone = {
        instance.id
        for reservation in self.reservations.values()
        for instance in reservation.instances
        if instance.state in _GONE
    }
    for resource in _iter_tagged(self):
        if resource.arn.rsplit("/", 1)[-1] not in gone:
            yield resource
    prefix = f"arn:aws:ec2:{self.region_name}:{self.account_id}"
    for template in self.launch_templates.values():
        yield TaggedResource(
            arn=f"{prefix}:launch-template/{template.id}",
            tags=dict(self.tags.get(template.id, {})),
            resource_type="ec2:launch-template",
        )
    for group in _groups(self).values():
        yield TaggedResource(
            arn=_group_arn(self, group),
            tags=dict(self.tags.get(group.id, {})),
            resource_type="ec2:placement-group",
        )


def _described_types(self: Any, *arguments: Any, **named: Any) -> list[dict[str, Any]]:
    types = _describe_instance_types(self, *arguments, **named)
    emulation = running()
    most = emulation.num_gpus if emulation is not None else None
    return types if most is None else [_with_gpus(described, most) for described in types]


def _with_gpus(described: dict[str, Any], most: int) -> dict[str, Any]:
    info = described.get("GpuInfo")
    if info is None:
        return described
    if most == 0:
        return {key: value for key, value in described.items() if key != "GpuInfo"}
    gpus = [{**gpu, "Count": min(gpu["Count"], most)} for gpu in info["Gpus"]]
    return {**described, "GpuInfo": {**info, "Gpus": gpus}}


def _tags_of(resource: Any) -> list[dict[str, str]]:
    """Return a resource's tags; moto searches those of the whole account at each question."""
    kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(resource.id), "") if resource.id else ""
    return [
        {"resource_id": resource.id, "key": key, "value": value, "resource_type": kind}
        for key, value in [*resource.ec2_backend.tags.get(resource.id, {}).items()]
    ]


def apply() -> None:
    """Add what is missing and tighten the deletes."""
    TaggedEC2Resource.get_tags = _tags_of
    EC2Response.create_placement_group = _create_placement_group
    EC2Response.describe_placement_groups = _describe_placement_groups
    EC2Response.delete_placement_group = _delete_placement_group
    EC2Backend.create_security_group = _create_group
    EC2Backend.describe_security_groups = _described_groups
    EC2Backend.authorize_security_group_ingress = _authorize(
        "AuthorizeSecurityGroupIngress", _authorize_ingress
    )
    EC2Backend.authorize_security_group_egress = _authorize(
        "AuthorizeSecurityGroupEgress", _authorize_egress
    )
    EC2Backend.create_launch_template = _create_template
    EC2Backend.delete_security_group = _delete_group
    EC2Backend.terminate_instances = _terminate
    EC2Backend.iter_tagged_resources = _tagged
    EC2Backend.describe_instance_types = _described_types
