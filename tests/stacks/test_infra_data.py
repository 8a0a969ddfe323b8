"""The stack that must not lose anything, and the network."""

from __future__ import annotations

import ipaddress
import itertools
import json
import re
from pathlib import Path
from typing import Any

from infra_templates import Resource, Template, of_type, reference, templates_of

from stationmaster.aws.table import table_definition

STATEFUL = {
    "AWS::DynamoDB::Table",
    "AWS::KMS::Key",
    "AWS::SecretsManager::Secret",
    "AWS::S3::Bucket",
}


def only(found: dict[str, Resource]) -> dict[str, Any]:
    (resource,) = found.values()
    return resource


def test_stateful_resources_outlive_their_stack(resources: dict[str, Resource]) -> None:
    stateful = {name: each for name, each in resources.items() if each["Type"] in STATEFUL}

    assert {each["Type"] for each in stateful.values()} == STATEFUL
    for name, resource in stateful.items():
        assert resource["DeletionPolicy"] == "Retain", name
        assert resource["UpdateReplacePolicy"] == "Retain", name


def test_table_is_encrypted_recoverable_and_streamed(resources: dict[str, Resource]) -> None:
    table = only(of_type(resources, "AWS::DynamoDB::Table"))["Properties"]

    assert table["SSESpecification"]["SSEEnabled"] is True
    assert "KMSMasterKeyId" in table["SSESpecification"]
    assert table["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True
    assert table["StreamSpecification"]["StreamViewType"] == "NEW_AND_OLD_IMAGES"
    assert table["TimeToLiveSpecification"] == {"AttributeName": "expires_at", "Enabled": True}
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["DeletionProtectionEnabled"] is True
    assert "TableName" not in table


def test_table_has_the_keys_that_the_store_uses(resources: dict[str, Resource]) -> None:
    table = only(of_type(resources, "AWS::DynamoDB::Table"))["Properties"]
    same = table_definition("the same")
    for part in ("KeySchema", "GlobalSecondaryIndexes", "BillingMode"):
        assert table[part] == same[part]
    stream = same["StreamSpecification"]
    assert table["StreamSpecification"]["StreamViewType"] == stream["StreamViewType"]


def test_results_are_versioned_encrypted_and_private(resources: dict[str, Resource]) -> None:
    bucket = only(of_type(resources, "AWS::S3::Bucket"))["Properties"]

    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    (encryption,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert encryption["BucketKeyEnabled"] is True
    assert encryption["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
    key = encryption["ServerSideEncryptionByDefault"]["KMSMasterKeyID"]
    assert "data/" + reference(key) in of_type(resources, "AWS::KMS::Key")
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    assert "BucketName" not in bucket


def test_results_never_expire_but_what_replaced_them_does(resources: dict[str, Resource]) -> None:
    bucket = only(of_type(resources, "AWS::S3::Bucket"))["Properties"]

    rules = bucket["LifecycleConfiguration"]["Rules"]
    (parts,) = [each for each in rules if "AbortIncompleteMultipartUpload" in each]
    (versions,) = [each for each in rules if "NoncurrentVersionExpiration" in each]
    assert parts["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert versions["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
    assert all(each["Status"] == "Enabled" for each in rules)
    expiring = [each for each in rules if any(name.startswith("Expiration") for name in each)]
    assert [each["Prefix"] for each in expiring] == ["relayed/"]  # no part of any result


def test_no_deployment_puts_a_value_of_ours_into_a_secret(resources: dict[str, Resource]) -> None:
    secrets = of_type(resources, "AWS::SecretsManager::Secret")

    of_people = {"Description", "KmsKeyId", "Tags"}
    given = [{*each["Properties"]} - of_people for each in secrets.values()]
    assert sorted(given, key=len) == [set(), set(), {"GenerateSecretString"}]


def test_images_cannot_be_overwritten_and_go_with_their_stack(
    resources: dict[str, Resource],
) -> None:
    repositories = of_type(resources, "AWS::ECR::Repository")

    assert {each["Properties"]["RepositoryName"] for each in repositories.values()} == {
        "stationmaster/training",
        "stationmaster/relay",
        "stationmaster/copies",
    }
    for repository in repositories.values():
        assert repository["Properties"]["ImageTagMutability"] == "IMMUTABLE"
        assert repository["DeletionPolicy"] == "Delete"
        assert repository["Properties"]["EmptyOnDelete"] is True
        assert repository["Properties"]["ImageScanningConfiguration"] == {"ScanOnPush": True}


def test_network_keeps_nodes_private(templates: dict[str, Template]) -> None:
    network = templates["network"]["Resources"]
    subnets = of_type(network, "AWS::EC2::Subnet").values()
    endpoints = of_type(network, "AWS::EC2::VPCEndpoint").values()

    assert not [each for each in subnets if each["Properties"].get("MapPublicIpOnLaunch")]
    zones = {json.dumps(each["Properties"]["AvailabilityZone"]) for each in subnets}
    assert len(zones) == 2
    assert {each["Properties"]["VpcEndpointType"] for each in endpoints} == {"Gateway"}
    assert len(endpoints) == 2
    assert of_type(network, "AWS::EC2::FlowLog")
    assert not of_type(network, "AWS::EC2::SecurityGroup")


def network(syntheses: Path, letters: str) -> dict[str, Resource]:
    """The resources of a network with the zones that have these letters."""
    template = json.loads((syntheses / "networks" / f"{letters}.template.json").read_text())
    resources: dict[str, Resource] = template["Resources"]
    return resources


def subnets(resources: dict[str, Resource], kind: str) -> dict[str, tuple[str, str]]:
    """Names and address ranges of the subnets of a kind, by the letter of their zone."""
    return {
        each["Properties"]["AvailabilityZone"][-1]: (name, each["Properties"]["CidrBlock"])
        for name, each in of_type(resources, "AWS::EC2::Subnet").items()
        if name.startswith(kind)
    }


def test_zones_come_and_go_without_a_change_of_the_others(syntheses: Path) -> None:
    whole = network(syntheses, "abcdef")

    for kind in ("Private", "Public"):
        slots = subnets(whole, kind)
        assert list(slots) == list("abcdef")
        for letters in ("bd", "abc"):
            fewer = subnets(network(syntheses, letters), kind)
            assert fewer == {letter: slots[letter] for letter in letters}
    ranges = [
        ipaddress.IPv4Network(each["Properties"]["CidrBlock"])
        for each in of_type(whole, "AWS::EC2::Subnet").values()
    ]
    assert not [pair for pair in itertools.combinations(ranges, 2) if pair[0].overlaps(pair[1])]


def test_nothing_that_may_be_taken_out_again_is_exported(
    templates: dict[str, Template], syntheses: Path
) -> None:
    """An export that another stack imports cannot go: the stack that has it is updated first."""
    for stack in (*templates_of(syntheses / "existing").values(), *templates.values()):
        text = json.dumps(stack)
        assert "stationmaster-images:Exports" not in text
        assert not re.search(r"stationmaster-network:Exports\w*(Private|Public)", text)


def test_network_reaches_named_services_by_endpoints(syntheses: Path) -> None:
    made = network(syntheses, "bd")

    endpoints = of_type(made, "AWS::EC2::VPCEndpoint").values()
    interfaces = [each["Properties"] for each in endpoints]
    names = {
        str(each["ServiceName"]).rpartition(".")[2].strip("']} ")
        for each in interfaces
        if each["VpcEndpointType"] == "Interface"
    }
    assert names == {"api", "sts"}
    assert all(each["PrivateDnsEnabled"] for each in interfaces if "SubnetIds" in each)
