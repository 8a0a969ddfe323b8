"""The stack that must not lose anything, and the network."""

from __future__ import annotations

import json
from typing import Any

from infra_templates import Resource, Template, of_type, reference

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
