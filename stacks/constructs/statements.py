"""One IAM statement as data, what permissions are about, and the parts that statements share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_secretsmanager as secretsmanager

from stacks.acknowledgements import accept_wildcard
from stationmaster.domain.names import TAG_CLUSTER_ID, TAG_DEPLOYMENT, cluster_name

if TYPE_CHECKING:
    from stacks.constructs.cluster_roles import ClusterRoles
    from stacks.constructs.deliveries import Clock

# The reason for "*" where AWS lists.
LISTING: Final = "AWS does not grant these listing actions on single resources"
NAMED: Final = "a cluster's name is unknown at deployment; the prefix limits it to our clusters"
CHOSEN: Final = "which objects a run trains on is a person's choice"
RESULTS: Final = "results lie under the ids of runs, unknown at deployment"


@dataclass(frozen=True)
class Statement:
    """An IAM statement; `reason` says why a resource has a wildcard, and is needed then."""

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    reason: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)


def allow(role: iam.Role, *statements: Statement) -> None:
    """Add statements to the policy of `role`, and accept their wildcards."""
    for each in statements:
        role.add_to_policy(
            iam.PolicyStatement(
                actions=[*each.actions],
                resources=[*each.resources],
                conditions={**each.conditions},
            )
        )
        for resource in each.resources:
            # A token's text may hold any character, so wildcards are looked for once resolved.
            if "*" in str(cdk.Stack.of(role).resolve(resource)):
                accept_wildcard(role, resource, each.reason)


@dataclass(frozen=True)
class Granted:
    """The resources of the other stacks that permissions are about."""

    deployment: str
    table_arns: tuple[str, ...]  # the table and each of its indexes
    key: kms.IKey
    bus: events.IEventBus
    slack_secret: secretsmanager.ISecret
    hugging_face_secret: secretsmanager.ISecret
    relay_secret: secretsmanager.ISecret
    roles: ClusterRoles
    vpc_arn: str
    dataset_bucket_arns: tuple[str, ...]
    linked_bucket_arns: tuple[str, ...]
    eks_clusters: tuple[str, ...]  # existing ones, by their names
    role_path: str  # of every role of the stacks: "/", or /PATH/
    function_role_arns: str  # a pattern of the functions' roles, of which some administer clusters
    kubectl_role_arns: tuple[str, ...]  # of people who may look at clusters
    artifacts_arn: str  # of the bucket
    machine_arns: Mapping[str, str]  # of the state machines, by their names in the registry
    clock: Clock

    @property
    def tagged(self) -> dict[str, Any]:
        """The condition that a request tags what it creates as a cluster's of this deployment."""
        return {
            "Null": {f"aws:RequestTag/{TAG_CLUSTER_ID}": "false"},
            "StringEquals": {f"aws:RequestTag/{TAG_DEPLOYMENT}": self.deployment},
        }

    @property
    def own(self) -> dict[str, Any]:
        """The condition that a resource is this deployment's; another one has clusters as well."""
        return {"StringEquals": {f"aws:ResourceTag/{TAG_DEPLOYMENT}": self.deployment}}

    def theirs(self, *kinds: str) -> tuple[str, ...]:
        """Write the ARNs of EKS's kinds of resources in the existing clusters that are named."""
        return tuple(of_cluster(kind, name) for kind in kinds for name in self.eks_clusters)


def arn(
    service: str,
    resource: str,
    name: str = "",
    *,
    sep: str = "/",
    region: str = cdk.Aws.REGION,
    account: str = cdk.Aws.ACCOUNT_ID,
) -> str:
    """Write the ARN of `resource/name` of a service, in the deployment's account and region."""
    named = f"{resource}{sep}{name}" if name else resource
    return f"arn:{cdk.Aws.PARTITION}:{service}:{region}:{account}:{named}"


def role_arn(name: str) -> str:
    """Write the ARN of a role of this account."""
    return arn("iam", "role", name, region="")


def of_cluster(kind: str, name: str) -> str:
    """Write the ARN of an EKS cluster, or of all of another kind that is in it."""
    return arn("eks", kind, name if kind == "cluster" else f"{name}/*")


def ours(*kinds: str) -> tuple[str, ...]:
    """Write the ARNs of EKS's kinds of resources in the product's own clusters."""
    return tuple(of_cluster(kind, cluster_name("*")) for kind in kinds)


def via(service: str) -> dict[str, Any]:
    """Require that a key is used by a service of this region, on behalf of the caller."""
    return {"StringEquals": {"kms:ViaService": f"{service}.{cdk.Aws.REGION}.amazonaws.com"}}


def pass_role(role: iam.IRole, *services: str) -> Statement:
    """Allow handing `role` to these services only."""
    condition = {"StringEquals": {"iam:PassedToService": list(services)}}
    return Statement(("iam:PassRole",), (role.role_arn,), conditions=condition)


def give_to_pods(*roles: iam.IRole) -> list[Statement]:
    """Allow handing `roles` to EKS Pod Identity, which gives them to service accounts."""
    condition = {"StringEquals": {"iam:PassedToService": "pods.eks.amazonaws.com"}}
    arns = tuple(role.role_arn for role in roles)
    return [Statement(("iam:PassRole",), arns, conditions=condition), get_roles(*roles)]


def get_roles(*roles: iam.IRole, more: tuple[str, ...] = ()) -> Statement:
    """Allow reading roles, which EKS does in the caller's name before it takes them on.

    `more` are further actions on them.
    """
    return Statement(("iam:GetRole", *more), tuple(role.role_arn for role in roles))


def service_linked_role_arn(service: str, name: str = "*") -> str:
    """Write the ARN of a role that a service makes for itself in this account."""
    return role_arn(f"aws-service-role/{service}/{name}")


def service_linked_role(*services: str) -> Statement:
    """Allow the creation of the roles that these services make for themselves on first use."""
    return Statement(
        ("iam:CreateServiceLinkedRole",),
        tuple(map(service_linked_role_arn, services)),
        "AWS names the service-linked role; the path and the condition name the service",
        {"StringEquals": {"iam:AWSServiceName": list(services)}},
    )
