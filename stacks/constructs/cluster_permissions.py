"""What functions may do with EKS: clusters of the product, which are known by their names.

A function that makes access entries could otherwise make anybody an administrator of a cluster. So
the statements name the roles that may be let in, each with the access policy that it has. They name
the functions' roles by a pattern: the list of all would not fit into the role's policy. Inside a
cluster of the product the functions stay administrators, because they install operators and roles.

Source: Service Authorization Reference, Amazon EKS: condition keys of CreateAccessEntry and
AssociateAccessPolicy.
"""

from __future__ import annotations

from typing import Final

import aws_cdk as cdk

from stacks.constructs.statements import (
    LISTING,
    NAMED,
    Granted,
    Statement,
    arn,
    get_roles,
    give_to_pods,
    of_cluster,
    ours,
    pass_role,
    service_linked_role,
    service_linked_role_arn,
)
from stationmaster.aws.access_entries import ACCESS_POLICIES, ADMIN_POLICY, VIEW_POLICY
from stationmaster.aws.clusters import VERSION_ACTIONS
from stationmaster.aws.hyperpod_clusters import HYPERPOD_ACTIONS
from stationmaster.aws.launch_templates import LAUNCHED
from stationmaster.aws.log_groups import METRICS_LOG_ACTIONS
from stationmaster.aws.price_list import PRICE_ACTIONS
from stationmaster.aws.scaling_groups import REPLACE_ACTIONS, SCALING_ACTIONS
from stationmaster.domain.names import TRAINING_NODE_GROUP, cluster_name, metrics_log_group

# The service of EKS that keeps node groups, by its name in roles.
_NODE_GROUPS: Final = "eks-nodegroup.amazonaws.com"
_MAKE_PARTS: Final = ("eks:CreateAddon", "eks:CreatePodIdentityAssociation", "eks:TagResource")
_EXISTING: Final = "ids of what belongs to a named existing cluster are unknown at deployment"


def create_cluster(granted: Granted) -> list[Statement]:
    return [
        Statement(("eks:CreateCluster",), ours("cluster"), NAMED, granted.tagged),
        Statement(VERSION_ACTIONS, ("*",), LISTING),
        *_let_in(granted, ADMIN_POLICY, (granted.function_role_arns,)),
        *_let_in(granted, VIEW_POLICY, granted.kubectl_role_arns),
        # With a cluster come its pods' identities and the add-on they need.
        Statement(
            _MAKE_PARTS,
            ours("cluster", "access-entry", "addon", "podidentityassociation"),
            NAMED,
        ),
        pass_role(granted.roles.cluster, "eks.amazonaws.com"),
        *give_to_pods(granted.roles.relay, granted.roles.stager),
        *_create_metrics(granted),
        service_linked_role("eks.amazonaws.com"),
    ]


def _let_in(granted: Granted, policy: str, roles: tuple[str, ...]) -> list[Statement]:
    """Allow access entries of these roles with one access policy, for the whole cluster."""
    if not roles:
        return []
    who = {"ArnLike": {"eks:principalArn": list(roles)}}
    whole = {
        "eks:accessScope": "cluster",
        "eks:policyArn": f"arn:{cdk.Aws.PARTITION}:{ACCESS_POLICIES}/{policy}",
    }
    associated = {"StringEquals": whole, **who}
    return [
        Statement(("eks:CreateAccessEntry",), ours("cluster"), NAMED, {**granted.tagged, **who}),
        Statement(("eks:AssociateAccessPolicy",), ours("access-entry"), NAMED, associated),
    ]


def _create_metrics(granted: Granted) -> list[Statement]:
    """Allow the log group of a cluster's metrics, and the agent's role; nothing without metrics."""
    role = granted.roles.metrics
    if role is None:
        return []
    groups = arn("logs", "log-group", metrics_log_group("*"), sep=":")
    return [Statement(METRICS_LOG_ACTIONS, (groups, f"{groups}:*"), NAMED), *give_to_pods(role)]


def read_clusters(granted: Granted) -> list[Statement]:
    actions = (
        "eks:DescribeCluster",
        "eks:ListNodegroups",
        "eks:DescribeNodegroup",
        "eks:DescribeAddon",
    )
    return [
        *read_existing(granted),
        Statement(actions, ours("cluster", "nodegroup", "addon"), NAMED),
    ]


def delete_cluster(granted: Granted) -> list[Statement]:
    """Allow deleting a cluster, with which add-ons, access entries and pods' identities go."""
    return [Statement(("eks:DeleteCluster",), ours("cluster"), NAMED, granted.own)]


def create_node_group(granted: Granted) -> list[Statement]:
    return [
        Statement(("eks:CreateNodegroup",), ours("cluster"), NAMED, granted.tagged),
        Statement(("eks:TagResource", "eks:UpdateNodegroupConfig"), ours("nodegroup"), NAMED),
        Statement(SCALING_ACTIONS, ("*",), LISTING),
        # EKS checks that the caller itself may launch from the launch template that it names.
        Statement(
            ("ec2:RunInstances",),
            (arn("ec2", "*", account="*"),),
            "an instance, its volumes, interfaces and image have no id before they are launched",
            {"ArnLike": {"ec2:LaunchTemplate": arn("ec2", "launch-template", "*")}},
        ),
        Statement(
            ("ec2:CreateTags",),
            tuple(arn("ec2", kind, "*") for kind in LAUNCHED),
            "the template tags what is launched, which has no id before it is",
            {"StringEquals": {"ec2:CreateAction": "RunInstances"}},
        ),
        pass_role(granted.roles.nodes, "eks.amazonaws.com", "ec2.amazonaws.com"),
        # EKS reads in the caller's name which policies the nodes have, and whether its own role is
        # there. Sources: https://github.com/aws-controllers-k8s/community/issues/2164 and
        # https://github.com/terraform-aws-modules/terraform-aws-eks/issues/823
        get_roles(granted.roles.nodes, more=("iam:ListAttachedRolePolicies",)),
        Statement(
            ("iam:GetRole",),
            (service_linked_role_arn(_NODE_GROUPS, "AWSServiceRoleForAmazonEKSNodegroup"),),
        ),
        service_linked_role(_NODE_GROUPS, "autoscaling.amazonaws.com", "spot.amazonaws.com"),
    ]


def replace_nodes(_granted: Granted) -> list[Statement]:
    """Allow ending instances of training nodes, by the Auto Scaling groups that EKS made for them.

    EKS names such a group eks-NODEGROUP-ID, and tags it with the names of cluster and node group.
    Source: AWS's policy AWSServiceRoleForAmazonEKSNodegroup, which limits EKS itself by both.
    """
    name = f"*:autoScalingGroupName/eks-{TRAINING_NODE_GROUP}-*"
    groups = arn("autoscaling", "autoScalingGroup", name, sep=":")
    of_cluster_tag = {"StringLike": {"aws:ResourceTag/eks:cluster-name": cluster_name("*")}}
    return [Statement(REPLACE_ACTIONS, (groups,), NAMED, of_cluster_tag)]


def delete_node_group(granted: Granted) -> list[Statement]:
    return [Statement(("eks:DeleteNodegroup",), ours("nodegroup"), NAMED, granted.own)]


def create_addon(granted: Granted) -> list[Statement]:
    made = ours("cluster", "addon", "podidentityassociation")
    return [Statement(_MAKE_PARTS, made, NAMED), *give_to_pods(granted.roles.fsx_csi)]


def call_kubernetes(granted: Granted) -> list[Statement]:
    """Allow finding the endpoint; the access entry limits what may be done there."""
    clusters = (*ours("cluster"), *granted.theirs("cluster"))
    return [Statement(("eks:DescribeCluster",), clusters, NAMED)]


def read_existing(granted: Granted) -> list[Statement]:
    """Allow asking whether they can be used, and what of ours is in them; nothing without any."""
    actions = (
        "eks:DescribeCluster",
        "eks:DescribeAccessEntry",
        "eks:DescribeAddon",
        "eks:ListPodIdentityAssociations",
        "eks:DescribePodIdentityAssociation",
    )
    arns = granted.theirs("cluster", "access-entry", "addon", "podidentityassociation")
    return [Statement(actions, arns, _EXISTING)] if arns else []


def find_existing(granted: Granted) -> list[Statement]:
    """Allow the same to who reads a name, and HyperPod's EKS cluster and its price to be found."""
    found, hyperpod = read_existing(granted), (arn("sagemaker", "cluster", "*"),)
    why = "a HyperPod cluster's ARN has an id, which its name does not tell"
    asked = [Statement(HYPERPOD_ACTIONS, hyperpod, why), Statement(PRICE_ACTIONS, ("*",), LISTING)]
    return [*found, *asked] if found else []


def join_existing(granted: Granted) -> list[Statement]:
    """Allow giving the product's own pods there their roles; nothing of the cluster itself."""
    if not granted.eks_clusters:
        return []
    clusters, made = granted.theirs("cluster"), granted.theirs("podidentityassociation")
    return [
        Statement(("eks:CreatePodIdentityAssociation",), clusters, _EXISTING, granted.tagged),
        Statement(("eks:TagResource",), made, _EXISTING),
    ]


def leave_existing(granted: Granted) -> list[Statement]:
    """Allow taking these roles away again, by associations with the deployment's tag."""
    made, actions = granted.theirs("podidentityassociation"), ("eks:DeletePodIdentityAssociation",)
    return [Statement(actions, made, _EXISTING, granted.own)] if made else []


def reach_results(granted: Granted) -> list[Statement]:
    """Allow letting pods of a run reach its result, in the product's and in existing clusters."""
    names = (cluster_name("*"), *granted.eks_clusters)
    clusters = tuple(of_cluster("cluster", name) for name in names)
    made = tuple(of_cluster("podidentityassociation", name) for name in names)
    return [
        Statement(("eks:CreatePodIdentityAssociation",), clusters, NAMED, granted.tagged),
        Statement(("eks:TagResource",), made, NAMED, granted.tagged),
        Statement(("eks:ListPodIdentityAssociations",), clusters, NAMED),
        Statement(("eks:DescribePodIdentityAssociation",), made, NAMED),
        Statement(("eks:DeletePodIdentityAssociation",), made, NAMED, granted.own),
        *give_to_pods(granted.roles.saver),
    ]
