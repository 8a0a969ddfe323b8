"""FSx for Lustre file systems that somebody else made: whether and how clusters may use one.

Nothing here changes a file system, its tags or its security groups. The bot asks when an id is
typed; the steps ask again before they make nodes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import AwsNotFound, aws_call
from stationmaster.domain.cluster.spec import FileSystemSpec
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.names import TAG_CLUSTER_ID
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import SecurityGroupTypeDef
    from mypy_boto3_fsx import FSxClient
    from mypy_boto3_fsx.type_defs import FileSystemTypeDef

# For the bot, beside fsx:DescribeFileSystems; the steps may look at all of the network anyway.
LOOK_ACTIONS: Final = (
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "fsx:DescribeFileSystems",
)
# TCP ports of Lustre, first and last. Source: FSx for Lustre user guide, "File system access
# control with Amazon VPC".
LUSTRE_PORTS: Final = ((988, 988), (1018, 1023))
_PORTS_SAID: Final = "TCP 988 and 1018-1023"
# Clients of AL2023 cannot mount 2.10. Source: the same guide, "Lustre file system and client
# kernel compatibility".
OLDEST_LUSTRE: Final = (2, 12)
# MB/s a TiB; a persistent file system says its own. Source: the same guide, "performance".
_SCRATCH_MBPS_PER_TIB: Final = 200
_USABLE: Final = ("AVAILABLE", "UPDATING")
# A large file system has an interface for each of its servers, all in the same groups.
_MAX_INTERFACES: Final = 20


@dataclass(frozen=True)
class ExistingFileSystem:
    """A file system that a cluster of the deployment can use, and what its nodes need for it."""

    spec: FileSystemSpec
    zone: str
    subnet_id: str
    """The deployment's subnet in its zone, for the nodes."""
    join_group_ids: tuple[str, ...]
    """Security groups of its own that let their members in; nodes join them where its rules do not
    let in the subnet."""
    peer_group_ids: tuple[str, ...]
    """Its security groups: its servers connect back to the nodes."""


class ExistingFileSystems:
    """Looks at file systems that the product did not make."""

    def __init__(self, settings: Settings, fsx: FSxClient, ec2: EC2Client) -> None:
        self._settings = settings
        self._fsx = fsx
        self._ec2 = ec2

    def look_up(self, file_system_id: str) -> ExistingFileSystem:
        """Return the file system, if clusters of the deployment can use it.

        Raises:
            NotPossibleNow: they cannot; says why and what to do.
            TransientError: AWS does not answer.
        """
        described = self._described(file_system_id)
        if problem := _why_unusable(described):
            raise NotPossibleNow(f"file system {file_system_id} {problem}")
        zone, subnet_id, network = self._place(described)
        groups = self._groups(described)
        joined = _to_join(groups, network)
        if joined is None:
            ids = ", ".join(group["GroupId"] for group in groups) or "none"
            raise NotPossibleNow(
                f"file system {file_system_id} lets no nodes in: its security groups ({ids}) allow "
                f"{_PORTS_SAID} neither from their own members nor from {network} ({subnet_id}); "
                "add such a rule to one of them"
            )
        return ExistingFileSystem(
            spec=_spec(described),
            zone=zone,
            subnet_id=subnet_id,
            join_group_ids=joined,
            peer_group_ids=tuple(group["GroupId"] for group in groups),
        )

    def _described(self, file_system_id: str) -> FileSystemTypeDef:
        known: list[FileSystemTypeDef] = []
        with suppress(AwsNotFound), aws_call(f"looking for file system {file_system_id}"):
            answer = self._fsx.describe_file_systems(FileSystemIds=[file_system_id])
            known = answer["FileSystems"]
        if not known:
            raise NotPossibleNow(
                f"there is no file system {file_system_id} in region {self._settings.region} of "
                "the deployment's AWS account; check its id, region and account"
            )
        found = known[0]
        if found.get("VpcId") != self._settings.vpc_id:
            raise NotPossibleNow(
                f"file system {file_system_id} is in network {found.get('VpcId')}, and clusters of "
                f"this deployment are made in {self._settings.vpc_id}; a deployment uses another "
                "network with vpc_id and subnet_ids in cdk.json, see docs/deploy.md"
            )
        return found

    def _place(self, described: FileSystemTypeDef) -> tuple[str, str, IPv4Network]:
        """Return its zone, and the deployment's subnet and addresses there.

        Raises:
            NotPossibleNow: the deployment has none.
        """
        theirs, ours = described["SubnetIds"][0], self._settings.subnet_ids
        with aws_call("reading subnets"):
            answer = self._ec2.describe_subnets(
                Filters=[{"Name": "vpc-id", "Values": [self._settings.vpc_id]}]
            )
        subnets = {subnet["SubnetId"]: subnet for subnet in answer["Subnets"]}
        zone = subnets[theirs]["AvailabilityZone"] if theirs in subnets else "not known"
        # Its own subnet first, where it is one of the deployment's.
        for subnet_id in sorted(ours, key=lambda each: each != theirs):
            subnet = subnets.get(subnet_id)
            if subnet is not None and subnet["AvailabilityZone"] == zone:
                return zone, subnet_id, IPv4Network(subnet["CidrBlock"])
        zones = {subnets[each]["AvailabilityZone"] for each in ours if each in subnets}
        raise NotPossibleNow(
            f"file system {described['FileSystemId']} is in zone {zone}, where this deployment has "
            f"no subnet (it has some in {', '.join(sorted(zones)) or 'none'}), and nodes have to "
            "be in the zone of their file system; use one of these zones, or add a subnet there "
            "to subnet_ids in cdk.json, see docs/deploy.md"
        )

    def _groups(self, described: FileSystemTypeDef) -> list[SecurityGroupTypeDef]:
        """Read the security groups of its network interfaces."""
        interfaces = described.get("NetworkInterfaceIds", [])[:_MAX_INTERFACES]
        if not interfaces:
            return []
        with aws_call(f"reading the network interfaces of {described['FileSystemId']}"):
            found = self._ec2.describe_network_interfaces(NetworkInterfaceIds=interfaces)
        of_all = [
            {group["GroupId"] for group in each.get("Groups", [])}
            for each in found["NetworkInterfaces"]
        ]
        ids = sorted(set.intersection(*of_all)) if of_all else []
        if not ids:
            return []
        with aws_call(f"reading the security groups of {described['FileSystemId']}"):
            return self._ec2.describe_security_groups(GroupIds=ids)["SecurityGroups"]


def _why_unusable(described: FileSystemTypeDef) -> str:
    """Say what is against it, and what to do; "" where nothing is."""
    identity, kind = described["FileSystemId"], described.get("FileSystemType", "unknown")
    lifecycle = described.get("Lifecycle", "CREATING")
    tags = {tag.get("Key"): tag.get("Value") for tag in described.get("Tags", [])}
    version = described.get("FileSystemTypeVersion", "2.10")
    if kind != "LUSTRE":
        return f"is of kind {kind}; runs use FSx for Lustre only"
    if TAG_CLUSTER_ID in tags:
        owner = tags[TAG_CLUSTER_ID]
        return f"belongs to cluster {owner} and goes with it; use on= where that cluster is kept"
    if lifecycle == "CREATING":
        return "is still being created; type the command again once it is AVAILABLE"
    if lifecycle not in _USABLE:
        why = described.get("FailureDetails", {}).get("Message", "")
        return f"cannot be used: it is {lifecycle}{f' ({why})' if why else ''}"
    if tuple(int(part) for part in version.split(".")) < OLDEST_LUSTRE:
        return (
            f"has Lustre {version}, which nodes of Amazon Linux 2023 cannot mount; aws fsx "
            f"update-file-system --file-system-id {identity} --file-system-type-version 2.15 "
            "upgrades it"
        )
    if not described.get("StorageCapacity"):
        return (
            f"has storage of type {described.get('StorageType')}, which has no size to plan with; "
            "use one with SSD or HDD storage"
        )
    return ""


def _spec(described: FileSystemTypeDef) -> FileSystemSpec:
    lustre = described.get("LustreConfiguration", {})
    return FileSystemSpec(
        storage_gib=described["StorageCapacity"],
        mbps_per_tib=lustre.get("PerUnitStorageThroughput") or _SCRATCH_MBPS_PER_TIB,
        existing_id=described["FileSystemId"],
    )


def _to_join(groups: list[SecurityGroupTypeDef], network: IPv4Network) -> tuple[str, ...] | None:
    """List the groups that nodes of `network` join to reach the file system; None for no way."""
    rules = [rule for group in groups for rule in group.get("IpPermissions", [])]
    if _lets_in(rules, partial(_is_for_network, network)):
        return ()
    for group in groups:
        if _lets_in(rules, partial(_is_for_group, group["GroupId"])):
            return (group["GroupId"],)
    return None


def _lets_in(
    rules: Iterable[Mapping[str, Any]], concerns: Callable[[Mapping[str, Any]], bool]
) -> bool:
    concerned = [rule for rule in rules if concerns(rule)]
    return all(
        any(_covers(rule, first, last) for rule in concerned) for first, last in LUSTRE_PORTS
    )


def _covers(rule: Mapping[str, Any], first: int, last: int) -> bool:
    protocol = rule.get("IpProtocol")
    if protocol == "-1":
        return True
    return (
        protocol in ("tcp", "6")
        and rule.get("FromPort", 0) <= first
        and rule.get("ToPort", 65535) >= last
    )


def _is_for_network(network: IPv4Network, rule: Mapping[str, Any]) -> bool:
    return any(
        network.subnet_of(IPv4Network(each["CidrIp"], strict=False))
        for each in rule.get("IpRanges", [])
    )


def _is_for_group(group_id: str, rule: Mapping[str, Any]) -> bool:
    return any(each.get("GroupId") == group_id for each in rule.get("UserIdGroupPairs", []))
