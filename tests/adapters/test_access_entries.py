"""Who is let into a cluster: the product's roles as administrators, people to look."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.names import PEOPLE, cluster_name
from stationmaster.kubernetes.connect import connect
from stationmaster.local.aws import LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.aws_fixtures import until

ANYWHERE = "0.0.0.0/0"
PERSON = "arn:aws:iam::123456789012:role/team/researchers"


@pytest.fixture
def services(settings: Settings) -> Services:
    return Services(settings.model_copy(update={"kubectl_role_arns": (PERSON,)}))


def make(services: Services, cluster_id: str) -> None:
    group = services.security_groups.ensure(cluster_id, instance_type="m5.2xlarge")
    services.clusters.ensure(cluster_id, version="1.35", security_group_id=group.group_id)
    until(lambda: services.clusters.describe(cluster_id).status == "ACTIVE")


def test_people_look_and_read_no_secrets_and_the_product_administers(
    services: Services, aws: LocalAws
) -> None:
    make(services, "c-1")

    for _ in range(2):
        services.access_entries.ensure("c-1")

    eks, name = aws.client("eks"), cluster_name("c-1")
    policies = {}
    for arn in eks.list_access_entries(clusterName=name)["accessEntries"]:
        entry = eks.describe_access_entry(clusterName=name, principalArn=arn)["accessEntry"]
        (policy,) = eks.list_associated_access_policies(clusterName=name, principalArn=arn)[
            "associatedAccessPolicies"
        ]
        assert policy["accessScope"]["type"] == "cluster"
        policies[arn] = (policy["policyArn"].rpartition("/")[2], entry["kubernetesGroups"])
    ours = services.settings.cluster_access_role_arns[0]
    assert policies == {
        ours: ("AmazonEKSClusterAdminPolicy", []),
        PERSON: ("AmazonEKSViewPolicy", [PEOPLE]),
    }


def test_role_that_eks_does_not_take_is_named_with_its_setting(
    services: Services, aws: LocalAws
) -> None:
    make(services, "c-2")
    aws.inject("eks", "CreateAccessEntry", "InvalidParameterException", times=1, after=1)

    with pytest.raises(PermanentError, match=f"{PERSON}.*check kubectl_role_arns in cdk.json"):
        services.access_entries.ensure("c-2")

    aws.clear_injected()


def test_restricted_api_is_reached_by_the_functions_group_and_the_named_addresses(
    services: Services, aws: LocalAws
) -> None:
    group = aws.client("ec2").create_security_group(
        GroupName="functions", Description="functions", VpcId=services.settings.vpc_id
    )["GroupId"]
    inside = {"functions_security_group_id": group}

    for cluster_id, restriction in (
        ("c-office", {"api_cidrs": ("203.0.113.0/24",)}),
        ("c-inside", {"public_api": False}),
    ):
        settings = services.settings.model_copy(update=inside | restriction)
        make(Services(settings), cluster_id)

    def network(cluster_id: str) -> dict[str, Any]:
        described = aws.client("eks").describe_cluster(name=cluster_name(cluster_id))["cluster"]
        found: dict[str, Any] = described["resourcesVpcConfig"]
        return found

    office, private = network("c-office"), network("c-inside")
    assert group in office["securityGroupIds"]
    assert group in private["securityGroupIds"]
    assert (office["endpointPublicAccess"], private["endpointPublicAccess"]) == (True, False)
    assert office["publicAccessCidrs"] == ["203.0.113.0/24"]
    assert office["endpointPrivateAccess"]
    assert private["endpointPrivateAccess"]


def test_closed_api_is_refused_by_functions_that_have_left_the_network(services: Services) -> None:
    closed = {"functions_security_group_id": "sg-1"}
    for name, is_public, addresses, is_closed in (
        ("office", True, ["203.0.113.0/24"], True),
        ("inside", False, [ANYWHERE], True),
        ("open", True, [ANYWHERE], False),
    ):
        services.clusters._client.create_cluster(
            name=name,
            roleArn=services.settings.cluster_role_arn,
            resourcesVpcConfig={
                "subnetIds": list(services.settings.subnet_ids),
                "endpointPublicAccess": is_public,
                "publicAccessCidrs": addresses,
            },
        )
        found = services.clusters.find(name)
        assert found.is_closed is is_closed
        if is_closed:
            with pytest.raises(PermanentError, match='"public_api": false or "api_cidrs"'):
                connect(services.settings, cluster=found)
        # That it has no endpoint yet is found after that.
        with pytest.raises(TransientError, match="no Kubernetes endpoint yet"):
            connect(services.settings.model_copy(update=closed), cluster=found)
