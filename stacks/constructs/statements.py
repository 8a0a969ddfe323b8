"""One IAM statement as data, and those that concern roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_iam as iam

from stationmaster.domain.names import TAG_CLUSTER_ID, TAG_DEPLOYMENT

# The reason for "*" where AWS lists.
LISTING: Final = "AWS does not grant these listing actions on single resources"
NAMED: Final = "a cluster's name is unknown at deployment; the prefix limits it to our clusters"


@dataclass(frozen=True)
class Statement:
    """An IAM statement; `reason` says why a resource has a wildcard, and is needed then."""

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    reason: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)


def tagged_at_creation(deployment: str) -> dict[str, Any]:
    """Require that a request tags what it creates as a cluster's of this deployment."""
    return {
        "Null": {f"aws:RequestTag/{TAG_CLUSTER_ID}": "false"},
        "StringEquals": {f"aws:RequestTag/{TAG_DEPLOYMENT}": deployment},
    }


def of_deployment(deployment: str) -> dict[str, Any]:
    """Require that a resource is this deployment's; another one has clusters as well."""
    return {"StringEquals": {f"aws:ResourceTag/{TAG_DEPLOYMENT}": deployment}}


def arn(stack: cdk.Stack, service: str, resource: str, name: str) -> str:
    """Write the ARN of `resource/name` of a service in this account and region."""
    return stack.format_arn(service=service, resource=resource, resource_name=name)


def pass_role(role: iam.IRole, *services: str) -> Statement:
    """Allow handing `role` to these services only."""
    condition = {"StringEquals": {"iam:PassedToService": list(services)}}
    return Statement(("iam:PassRole",), (role.role_arn,), conditions=condition)


def pass_to_pods(*roles: iam.IRole) -> Statement:
    """Allow handing `roles` to EKS Pod Identity, which gives them to service accounts."""
    condition = {"StringEquals": {"iam:PassedToService": "pods.eks.amazonaws.com"}}
    arns = tuple(role.role_arn for role in roles)
    return Statement(("iam:PassRole",), arns, conditions=condition)


def get_roles(*roles: iam.IRole, more: tuple[str, ...] = ()) -> Statement:
    """Allow reading roles, which EKS does in the caller's name before it takes them on.

    `more` are further actions on them.
    """
    return Statement(("iam:GetRole", *more), tuple(role.role_arn for role in roles))


def service_linked_role_arn(stack: cdk.Stack, service: str, name: str = "*") -> str:
    """Write the ARN of a role that a service makes for itself in this account."""
    return stack.format_arn(
        service="iam",
        region="",
        resource="role",
        resource_name=f"aws-service-role/{service}/{name}",
    )


def service_linked_role(stack: cdk.Stack, *services: str) -> Statement:
    """Allow the creation of the roles that these services make for themselves on first use."""
    return Statement(
        ("iam:CreateServiceLinkedRole",),
        tuple(service_linked_role_arn(stack, service) for service in services),
        "AWS names the service-linked role; the path and the condition name the service",
        {"StringEquals": {"iam:AWSServiceName": list(services)}},
    )
