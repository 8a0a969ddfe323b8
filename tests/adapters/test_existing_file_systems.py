"""File systems that somebody else made, as the product looks at them in an account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stationmaster.aws.existing_file_systems import ExistingFileSystems
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.names import TAG_CLUSTER_ID
from stationmaster.local.aws import LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.aws_fixtures import until

Rules = list[dict[str, Any]]
LUSTRE = ((988, 988), (1018, 1023))


class Person:
    """Somebody who makes file systems and networks by hand."""

    def __init__(self, aws: LocalAws, settings: Settings) -> None:
        self.ec2, self.fsx = aws.client("ec2"), aws.client("fsx")
        self.settings = settings
        self.vpc_id, self.subnet_ids = settings.vpc_id, settings.subnet_ids

    def services(self, **changes: Any) -> Services:
        return Services(self.settings.model_copy(update=changes))

    def group(self, rules: Callable[[str], Rules], *, vpc_id: str = "") -> str:
        """A security group with the rules that are given its id."""
        made = self.ec2.create_security_group(
            GroupName=f"group-{len(self.ec2.describe_security_groups()['SecurityGroups'])}",
            Description="made by a person",
            VpcId=vpc_id or self.vpc_id,
        )
        group_id = str(made["GroupId"])
        if wanted := rules(group_id):
            self.ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=wanted)
        return group_id

    def file_system(
        self, *, groups: list[str] | None = None, subnet_id: str = "", **changes: Any
    ) -> str:
        """A file system that is available, with the rules of the network's default group."""
        wanted = {
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": "2.15",
            "StorageCapacity": 1200,
            "SubnetIds": [subnet_id or self.subnet_ids[0]],
            "SecurityGroupIds": groups or [self.group(to_itself)],
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_2",
                "PerUnitStorageThroughput": 500,
            },
        }
        made = self.fsx.create_file_system(**(wanted | changes))["FileSystem"]
        until(lambda: self.described(made["FileSystemId"])["Lifecycle"] != "CREATING")
        return str(made["FileSystemId"])

    def described(self, file_system_id: str) -> dict[str, Any]:
        found = self.fsx.describe_file_systems(FileSystemIds=[file_system_id])
        described: dict[str, Any] = found["FileSystems"][0]
        return described


def ports(**source: Any) -> Rules:
    return [
        {"IpProtocol": "tcp", "FromPort": first, "ToPort": last, **source} for first, last in LUSTRE
    ]


def to_itself(group_id: str) -> Rules:
    return ports(UserIdGroupPairs=[{"GroupId": group_id}])


def to_network(cidr: str) -> Callable[[str], Rules]:
    return lambda _: ports(IpRanges=[{"CidrIp": cidr}])


@pytest.fixture
def person(aws: LocalAws, settings: Settings) -> Person:
    return Person(aws, settings)


def refusal(person: Person, file_system_id: str, **settings: Any) -> str:
    with pytest.raises(NotPossibleNow) as caught:
        person.services(**settings).existing_file_systems.look_up(file_system_id)
    return str(caught.value)


def test_group_that_lets_its_members_in_is_joined(person: Person) -> None:
    group = person.group(to_itself)
    made = person.file_system(groups=[group])

    found = person.services().existing_file_systems.look_up(made)

    assert (found.spec.existing_id, found.spec.storage_gib) == (made, 1200)
    assert found.spec.mbps_per_tib == 500
    assert found.subnet_id == person.subnet_ids[0]
    assert found.join_group_ids == found.peer_group_ids == (group,)


def test_file_system_without_a_group_of_its_own_is_reached_through_the_networks(
    person: Person,
) -> None:
    made = person.file_system(SecurityGroupIds=[])

    found = person.services().existing_file_systems.look_up(made)

    (group_id,) = found.join_group_ids
    (group,) = person.ec2.describe_security_groups(GroupIds=[group_id])["SecurityGroups"]
    assert (group["GroupName"], group["VpcId"]) == ("default", person.vpc_id)


def test_group_that_lets_the_subnet_in_is_not_joined(person: Person) -> None:
    group = person.group(to_network("10.0.0.0/8"))
    made = person.file_system(groups=[group])

    found = person.services().existing_file_systems.look_up(made)

    assert (found.join_group_ids, found.peer_group_ids) == ((), (group,))


@pytest.mark.parametrize(
    "rules",
    [
        lambda _: [],
        to_network("192.168.0.0/16"),
        lambda own: to_itself(own)[:1],
        lambda own: [
            {
                "IpProtocol": "udp",
                "FromPort": 0,
                "ToPort": 65535,
                "UserIdGroupPairs": [{"GroupId": own}],
            }
        ],
    ],
    ids=["none", "another network", "988 alone", "udp"],
)
def test_file_system_that_lets_no_nodes_in_is_refused_with_its_ports(
    person: Person, rules: Callable[[str], Rules]
) -> None:
    group = person.group(rules)

    said = refusal(person, person.file_system(groups=[group]))

    assert f"its security groups ({group}) allow TCP 988 and 1018-1023 neither" in said
    assert person.subnet_ids[0] in said


def test_rules_of_several_groups_count_together(person: Person) -> None:
    first = person.group(lambda own: to_itself(own)[:1])
    second = person.group(
        lambda _: [
            {
                "IpProtocol": "tcp",
                "FromPort": 1000,
                "ToPort": 2000,
                "UserIdGroupPairs": [{"GroupId": first}],
            }
        ]
    )

    found = person.services().existing_file_systems.look_up(
        person.file_system(groups=[first, second])
    )

    assert found.join_group_ids == (first,)


def test_file_system_of_another_zone_decides_where_nodes_are_made(person: Person) -> None:
    second = person.subnet_ids[1]
    made = person.file_system(subnet_id=second)
    zone = person.ec2.describe_subnets(SubnetIds=[second])["Subnets"][0]["AvailabilityZone"]

    found = person.services().existing_file_systems.look_up(made)
    said = refusal(person, made, subnet_ids=(person.subnet_ids[0],))

    assert (found.subnet_id, found.zone) == (second, zone)
    assert f"is in zone {zone}, where this deployment has no subnet" in said


def test_nodes_are_made_in_its_own_subnet_where_the_zone_has_several(person: Person) -> None:
    first = person.subnet_ids[0]
    zone = person.ec2.describe_subnets(SubnetIds=[first])["Subnets"][0]["AvailabilityZone"]
    second = person.ec2.create_subnet(
        VpcId=person.vpc_id, CidrBlock="10.42.224.0/20", AvailabilityZone=zone
    )["Subnet"]["SubnetId"]
    made = person.file_system(subnet_id=second)

    found = person.services(subnet_ids=(first, second)).existing_file_systems.look_up(made)
    other = person.services(subnet_ids=(first,)).existing_file_systems.look_up(made)

    assert (found.subnet_id, other.subnet_id) == (second, first)


def test_file_system_that_is_not_there_is_refused(person: Person) -> None:
    said = refusal(person, "fs-0123456789abcdef0")

    assert "there is no file system fs-0123456789abcdef0 in region" in said
    assert "check its id, region and account" in said


class Described:
    """FSx with one file system of whatever kind."""

    def __init__(self, **described: Any) -> None:
        self._described = {
            "FileSystemId": "fs-0123456789abcdef0",
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": "2.15",
            "Lifecycle": "AVAILABLE",
            "VpcId": "vpc-1",
            "StorageCapacity": 1200,
            **described,
        }

    def describe_file_systems(self, **_: Any) -> dict[str, Any]:
        return {"FileSystems": [self._described]}


@pytest.mark.parametrize(
    ("described", "said"),
    [
        ({"VpcId": "vpc-2"}, "is in network vpc-2.*made in vpc-1"),
        (
            {"FileSystemTypeVersion": "2.10"},
            "has Lustre 2.10, which nodes of Amazon Linux 2023 cannot mount.* aws fsx "
            "update-file-system --file-system-id fs-0123456789abcdef0 --file-system-type-version",
        ),
        (
            {"Lifecycle": "FAILED", "FailureDetails": {"Message": "no room"}},
            "cannot be used: it is FAILED (no room",
        ),
        (
            {"Tags": [{"Key": TAG_CLUSTER_ID, "Value": "tiny-llama-0a1b2c3d"}]},
            "belongs to cluster tiny-llama-0a1b2c3d and goes with it",
        ),
        ({"FileSystemType": "ONTAP"}, "is of kind ONTAP; runs use FSx for Lustre only"),
        ({"Lifecycle": "CREATING"}, "is still being created; type the command again"),
        ({"Lifecycle": "DELETING"}, "cannot be used: it is DELETING"),
        (
            {"StorageCapacity": 0, "StorageType": "INTELLIGENT_TIERING"},
            "has storage of type INTELLIGENT_TIERING, which has no size to plan with",
        ),
    ],
)
def test_file_system_of_another_kind_or_state_is_refused(
    described: dict[str, Any], said: str
) -> None:
    settings = Settings(region="us-west-2", table_name="t", bus_name="b", vpc_id="vpc-1")
    systems: Any = Described(**described)

    with pytest.raises(NotPossibleNow, match=said.replace("(", r"\(")):
        ExistingFileSystems(settings, systems, systems).look_up("fs-0123456789abcdef0")
