"""Each registry Permission as the narrowest IAM statements that AWS lets us write.

`tagged_kinds` draws resources that are known by their tags; EKS's are known by their names and
written out here. What AWS cannot narrow down carries the reason, which the AwsSolutions rules are
given. Names and tags come from the domain, so a function can touch only what Stationmaster created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_secretsmanager as secretsmanager

from lambdas.registry import Permission
from stacks.acknowledgements import accept_wildcard
from stacks.constructs.cluster_access import let_in
from stacks.constructs.cluster_roles import ClusterRoles
from stacks.constructs.deliveries import Clock
from stacks.constructs.statements import (
    LISTING,
    NAMED,
    Statement,
    arn,
    get_roles,
    of_deployment,
    pass_role,
    pass_to_pods,
    service_linked_role,
    service_linked_role_arn,
    tagged_at_creation,
)
from stacks.constructs.tagged_kinds import create_tagged, delete_tagged, read_kinds
from stationmaster.aws.account import ACCOUNT_ACTIONS, IMAGE_ACTIONS
from stationmaster.aws.existing_file_systems import LOOK_ACTIONS
from stationmaster.aws.file_system_room import ROOM_ACTIONS
from stationmaster.aws.kubernetes_versions import VERSION_ACTIONS
from stationmaster.aws.metrics_logs import METRICS_LOG_ACTIONS
from stationmaster.aws.reservations import RESERVATION_ACTIONS
from stationmaster.aws.scaling_activities import SCALING_ACTIONS
from stationmaster.aws.scaling_groups import REPLACE_ACTIONS
from stationmaster.aws.schedules import CLOCK_ACTIONS
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import (
    TRAINING_NODE_GROUP,
    cluster_name,
    metrics_log_group,
)
from stationmaster.domain.results import results_prefix


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
    function_role_arns: str  # a pattern of the functions' roles, of which some administer clusters
    kubectl_role_arns: tuple[str, ...]  # of people who may look at clusters
    artifacts_arn: str  # of the bucket
    machine_arns: Mapping[str, str]  # of the state machines, by their names in the registry
    clock: Clock


# What DynamoDB does with a customer's key on behalf of the caller.
_KEY_ACTIONS: Final = ("kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey", "kms:DescribeKey")

# The service of EKS that keeps node groups, by its name in roles.
_NODE_GROUPS: Final = "eks-nodegroup.amazonaws.com"
# The service of FSx that reads linked buckets, by its name in roles.
_S3_OF_FSX: Final = "s3.data-source.lustre.fsx.amazonaws.com"
# Source: FSx for Lustre user guide, "Unable to validate access to an S3 bucket": Get* and List*,
# of which these concern a bucket that is linked without policies.
_READ_BUCKET: Final = (
    "s3:ListBucket",
    "s3:GetBucketLocation",
    "s3:GetBucketAcl",
    "s3:GetBucketPolicy",
    "s3:GetBucketNotification",
    "s3:GetEncryptionConfiguration",
)

# What the launch template of training nodes tags.
_LAUNCHED: Final = ("instance", "volume", "network-interface")

_EXISTING: Final = "ids of what belongs to a named existing cluster are unknown at deployment"


def grant(role: iam.Role, permission: Permission, granted: Granted) -> None:
    """Give `role` what `permission` stands for."""
    for statement in _STATEMENTS[permission](cdk.Stack.of(role), granted):
        role.add_to_policy(
            iam.PolicyStatement(
                actions=list(statement.actions),
                resources=list(statement.resources),
                conditions=dict(statement.conditions),
            )
        )
        for resource in statement.resources:
            # A token's text may hold any character, so wildcards are looked for once resolved.
            if "*" in str(cdk.Stack.of(role).resolve(resource)):
                accept_wildcard(role, resource, statement.reason)


def _table_read(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    return [
        _table(granted, "dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"),
        _table_key(stack, granted),
    ]


def _table_write(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    return [
        _table(
            granted,
            "dynamodb:PutItem",
            "dynamodb:UpdateItem",
            "dynamodb:DeleteItem",
        ),
        _table_key(stack, granted),
    ]


def _table(granted: Granted, *actions: str) -> Statement:
    return Statement(actions, granted.table_arns)


def _table_key(stack: cdk.Stack, granted: Granted) -> Statement:
    via = {"StringEquals": {"kms:ViaService": f"dynamodb.{stack.region}.amazonaws.com"}}
    return Statement(_KEY_ACTIONS, (granted.key.key_arn,), conditions=via)


def _bus_put(_stack: cdk.Stack, granted: Granted) -> list[Statement]:
    return [Statement(("events:PutEvents",), (granted.bus.event_bus_arn,))]


def _start(granted: Granted, machine: str) -> list[Statement]:
    return [Statement(("states:StartExecution",), (granted.machine_arns[machine],))]


def _look(granted: Granted, machine: str) -> list[Statement]:
    executions = granted.machine_arns[machine].replace(":stateMachine:", ":execution:") + ":*"
    reason = "an execution is named after its run or cluster, unknown at deployment"
    return [Statement(("states:DescribeExecution",), (executions,), reason)]


def _send_task_result(_stack: cdk.Stack, granted: Granted) -> list[Statement]:
    actions = ("states:SendTaskSuccess", "states:SendTaskFailure", "states:SendTaskHeartbeat")
    return [Statement(actions, (granted.machine_arns["train"],))]


def _secret(stack: cdk.Stack, granted: Granted, secret: secretsmanager.ISecret) -> list[Statement]:
    via = {"StringEquals": {"kms:ViaService": f"secretsmanager.{stack.region}.amazonaws.com"}}
    return [
        Statement(("secretsmanager:GetSecretValue",), (secret.secret_arn,)),
        Statement(("kms:Decrypt",), (granted.key.key_arn,), conditions=via),
    ]


def _cluster_create(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    return [
        Statement(
            ("eks:CreateCluster",),
            (arn(stack, "eks", "cluster", cluster_name("*")),),
            NAMED,
            tagged_at_creation(granted.deployment),
        ),
        Statement(VERSION_ACTIONS, ("*",), LISTING),
        *let_in(
            stack,
            functions=granted.function_role_arns,
            people=granted.kubectl_role_arns,
            tagged=tagged_at_creation(granted.deployment),
        ),
        # With a cluster come its pods' identities and the add-on they need.
        Statement(
            ("eks:CreateAddon", "eks:CreatePodIdentityAssociation", "eks:TagResource"),
            (
                arn(stack, "eks", "cluster", cluster_name("*")),
                arn(stack, "eks", "access-entry", f"{cluster_name('*')}/*"),
                arn(stack, "eks", "addon", f"{cluster_name('*')}/*"),
                arn(stack, "eks", "podidentityassociation", f"{cluster_name('*')}/*"),
            ),
            NAMED,
        ),
        pass_role(granted.roles.cluster, "eks.amazonaws.com"),
        pass_to_pods(granted.roles.relay, granted.roles.stager),
        *_metrics_create(stack, granted),
        get_roles(granted.roles.relay, granted.roles.stager),
        service_linked_role(stack, "eks.amazonaws.com"),
    ]


def _metrics_create(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow the log group of a cluster's metrics, and the agent's role; nothing without metrics."""
    role = granted.roles.metrics
    if role is None:
        return []
    groups = stack.format_arn(
        service="logs",
        resource="log-group",
        resource_name=metrics_log_group("*"),
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )
    return [
        Statement(METRICS_LOG_ACTIONS, (groups, f"{groups}:*"), NAMED),
        pass_to_pods(role),
        get_roles(role),
    ]


def _cluster_read(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    return [
        *_existing_clusters_read(stack, granted),
        Statement(
            (
                "eks:DescribeCluster",
                "eks:ListNodegroups",
                "eks:DescribeNodegroup",
                "eks:DescribeAddon",
            ),
            (
                arn(stack, "eks", "cluster", cluster_name("*")),
                arn(stack, "eks", "nodegroup", f"{cluster_name('*')}/*"),
                arn(stack, "eks", "addon", f"{cluster_name('*')}/*"),
            ),
            NAMED,
        ),
    ]


def _cluster_delete(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow deleting a cluster, with which add-ons, access entries and pods' identities go."""
    clusters = arn(stack, "eks", "cluster", cluster_name("*"))
    ours = of_deployment(granted.deployment)
    return [Statement(("eks:DeleteCluster",), (clusters,), NAMED, ours)]


def _node_group_create(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    return [
        Statement(
            ("eks:CreateNodegroup",),
            (arn(stack, "eks", "cluster", cluster_name("*")),),
            NAMED,
            tagged_at_creation(granted.deployment),
        ),
        Statement(
            ("eks:TagResource", "eks:UpdateNodegroupConfig"),
            (arn(stack, "eks", "nodegroup", f"{cluster_name('*')}/*"),),
            NAMED,
        ),
        Statement(SCALING_ACTIONS, ("*",), LISTING),
        _replace_training_nodes(stack),
        # EKS checks that the caller itself may launch from the launch template that it names.
        Statement(
            ("ec2:RunInstances",),
            (stack.format_arn(service="ec2", account="*", resource="*"),),
            "an instance, its volumes, interfaces and image have no id before they are launched",
            {"ArnLike": {"ec2:LaunchTemplate": arn(stack, "ec2", "launch-template", "*")}},
        ),
        Statement(
            ("ec2:CreateTags",),
            tuple(arn(stack, "ec2", kind, "*") for kind in _LAUNCHED),
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
            (service_linked_role_arn(stack, _NODE_GROUPS, "AWSServiceRoleForAmazonEKSNodegroup"),),
        ),
        service_linked_role(stack, _NODE_GROUPS, "autoscaling.amazonaws.com", "spot.amazonaws.com"),
    ]


def _replace_training_nodes(stack: cdk.Stack) -> Statement:
    """Allow ending instances of training nodes, by the Auto Scaling groups that EKS made for them.

    EKS names such a group eks-NODEGROUP-ID, and tags it with the names of cluster and node group.
    Source: AWS's policy AWSServiceRoleForAmazonEKSNodegroup, which limits EKS itself by both.
    """
    groups = stack.format_arn(
        service="autoscaling",
        resource="autoScalingGroup",
        resource_name=f"*:autoScalingGroupName/eks-{TRAINING_NODE_GROUP}-*",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )
    ours = {"StringLike": {"aws:ResourceTag/eks:cluster-name": cluster_name("*")}}
    return Statement(REPLACE_ACTIONS, (groups,), NAMED, ours)


def _node_group_delete(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    node_groups = arn(stack, "eks", "nodegroup", f"{cluster_name('*')}/*")
    ours = of_deployment(granted.deployment)
    return [Statement(("eks:DeleteNodegroup",), (node_groups,), NAMED, ours)]


def _addon_create(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    return [
        Statement(
            ("eks:CreateAddon", "eks:CreatePodIdentityAssociation", "eks:TagResource"),
            (
                arn(stack, "eks", "cluster", cluster_name("*")),
                arn(stack, "eks", "addon", f"{cluster_name('*')}/*"),
                arn(stack, "eks", "podidentityassociation", f"{cluster_name('*')}/*"),
            ),
            NAMED,
        ),
        pass_to_pods(granted.roles.fsx_csi),
        get_roles(granted.roles.fsx_csi),
    ]


def _file_system_create(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    return [
        *create_tagged(stack, "file-system", granted.deployment),
        # FSx asks in the caller's name whether the security group may be used in the network.
        # Source: Service Authorization Reference, Amazon FSx, dependent actions.
        Statement(("ec2:GetSecurityGroupsForVpc",), (granted.vpc_arn,)),
        service_linked_role(stack, "fsx.amazonaws.com"),
    ]


def _file_system_read(_stack: cdk.Stack, _granted: Granted) -> list[Statement]:
    return [read_kinds("file-system")]


def _data_link_create(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow linking buckets to file systems.

    FSx looks at each bucket in the caller's name, and makes a role for each file system with which
    it reads. It asks for the right to write objects even where the link only reads, so a function
    has these rights through FSx only.
    """
    linking = create_tagged(stack, "data-link", granted.deployment)
    buckets = granted.linked_bucket_arns
    if not buckets:
        return linking
    role = service_linked_role_arn(stack, _S3_OF_FSX)
    through_fsx = {"Bool": {"aws:ViaAWSService": "true"}}
    objects = tuple(f"{bucket}/*" for bucket in buckets)
    named = "objects of a bucket that the deployment names have keys of their own"
    return [
        *linking,
        service_linked_role(stack, _S3_OF_FSX),
        Statement(
            ("iam:AttachRolePolicy", "iam:PutRolePolicy"),
            (role,),
            "FSx names the role that it makes for each linked file system",
        ),
        Statement(_READ_BUCKET, buckets, conditions=through_fsx),
        Statement(("s3:GetObject", "s3:PutObject"), objects, named, through_fsx),
    ]


def _network_create(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    return [
        *create_tagged(stack, "network", granted.deployment),
        Statement(("ec2:CreateSecurityGroup",), (granted.vpc_arn,)),
    ]


def _network_read(_stack: cdk.Stack, _granted: Granted) -> list[Statement]:
    """Allow also what EKS reads in the caller's name."""
    described = (
        "InstanceTypeOfferings",
        "InstanceTypes",
        "Instances",
        "LaunchTemplateVersions",
        "NetworkInterfaces",
        "Subnets",
        "Volumes",
        "Vpcs",
    )
    return [
        read_kinds("network", *(f"ec2:Describe{each}" for each in described), "tag:GetResources")
    ]


def _instance_types_read(_stack: cdk.Stack, _granted: Granted) -> list[Statement]:
    return [Statement(("ec2:DescribeInstanceTypes",), ("*",), LISTING)]


def _preflight(stack: cdk.Stack, _granted: Granted) -> list[Statement]:
    """Allow asking what the account may use, and whether an image exists."""
    repositories = stack.format_arn(
        service="ecr", account="*", resource="repository", resource_name="*"
    )
    return [
        Statement((*ACCOUNT_ACTIONS, *RESERVATION_ACTIONS), ("*",), LISTING),
        Statement(
            IMAGE_ACTIONS, (repositories,), "image= names a repository, unknown at deployment"
        ),
    ]


def _datasets_list(_stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow names, sizes and first bytes, for a plan; nothing without configured buckets."""
    buckets = granted.dataset_bucket_arns
    if not buckets:
        return []
    objects = tuple(f"{bucket}/*" for bucket in buckets)
    reason = "which objects a run trains on is a person's choice"
    return [Statement(("s3:ListBucket",), buckets), Statement(("s3:GetObject",), objects, reason)]


def _existing_file_systems_read(_stack: cdk.Stack, _granted: Granted) -> list[Statement]:
    """Allow looking at a file system, and whether nodes of the network reach it; for a plan."""
    return [Statement((*LOOK_ACTIONS, *ROOM_ACTIONS), ("*",), LISTING)]


def _artifacts_read(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow the manifest, and what S3 says of the other files.

    Without the right to list the bucket, S3 answers "denied" for what is missing.
    """
    via = {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}}
    results = results_prefix(RunId("*"))
    return [
        Statement(
            ("s3:GetObject",),
            (f"{granted.artifacts_arn}/{results}*",),
            "results lie under the ids of runs, unknown at deployment",
        ),
        Statement(("s3:ListBucket",), (granted.artifacts_arn,)),
        Statement(("kms:Decrypt",), (granted.key.key_arn,), conditions=via),
    ]


def _kubernetes(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow finding the endpoint; the access entry limits what may be done there."""
    clusters = arn(stack, "eks", "cluster", cluster_name("*"))
    existing = _existing(stack, granted, "cluster")
    return [Statement(("eks:DescribeCluster",), (clusters, *existing), NAMED)]


def _existing(stack: cdk.Stack, granted: Granted, kind: str) -> tuple[str, ...]:
    """Write the ARNs of one kind of resource of the existing EKS clusters that are configured."""
    rest = "" if kind == "cluster" else "/*"
    return tuple(arn(stack, "eks", kind, f"{name}{rest}") for name in granted.eks_clusters)


def _existing_clusters_read(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow asking whether they can be used, and what of ours is in them; nothing without any."""
    if not granted.eks_clusters:
        return []
    actions = (
        "eks:DescribeCluster",
        "eks:DescribeAccessEntry",
        "eks:DescribeAddon",
        "eks:ListPodIdentityAssociations",
    )
    kinds = ("cluster", "access-entry", "addon")
    arns = tuple(each for kind in kinds for each in _existing(stack, granted, kind))
    return [Statement(actions, arns, _EXISTING)]


def _existing_clusters_join(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow giving the product's own pods there their roles; nothing of the cluster itself."""
    if not granted.eks_clusters:
        return []
    return [
        Statement(
            ("eks:CreatePodIdentityAssociation",),
            _existing(stack, granted, "cluster"),
            _EXISTING,
            tagged_at_creation(granted.deployment),
        ),
        Statement(
            ("eks:TagResource",), _existing(stack, granted, "podidentityassociation"), _EXISTING
        ),
    ]


def _existing_clusters_leave(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow taking these roles away again, by associations with the deployment's tag."""
    if not granted.eks_clusters:
        return []
    return [
        Statement(
            ("eks:DeletePodIdentityAssociation",),
            _existing(stack, granted, "podidentityassociation"),
            _EXISTING,
            of_deployment(granted.deployment),
        )
    ]


def _results_access(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    """Allow letting pods of a run reach its result, in the product's and in existing clusters."""
    names = (cluster_name("*"), *granted.eks_clusters)
    clusters = tuple(arn(stack, "eks", "cluster", name) for name in names)
    made = tuple(arn(stack, "eks", "podidentityassociation", f"{name}/*") for name in names)
    tagged, saver = tagged_at_creation(granted.deployment), granted.roles.saver
    return [
        Statement(("eks:CreatePodIdentityAssociation",), clusters, NAMED, tagged),
        Statement(("eks:TagResource",), made, NAMED, tagged),
        Statement(("eks:ListPodIdentityAssociations",), clusters, NAMED),
        Statement(
            ("eks:DeletePodIdentityAssociation",),
            made,
            NAMED,
            of_deployment(granted.deployment),
        ),
        pass_to_pods(saver),
        get_roles(saver),
    ]


def _clock(stack: cdk.Stack, granted: Granted) -> list[Statement]:
    schedules = arn(stack, "scheduler", "schedule", f"{granted.clock.group}/*")
    return [
        Statement(CLOCK_ACTIONS, (schedules,), "a clock is named after its cluster"),
        pass_role(granted.clock.role, "scheduler.amazonaws.com"),
    ]


_STATEMENTS: Final[Mapping[Permission, Callable[[cdk.Stack, Granted], list[Statement]]]] = {
    Permission.TABLE_READ: _table_read,
    Permission.TABLE_WRITE: _table_write,
    Permission.BUS_PUT: _bus_put,
    Permission.START_TRAIN: lambda _, granted: _start(granted, "train") + _look(granted, "train"),
    Permission.START_CLUSTER: lambda _, granted: _start(granted, "cluster"),
    Permission.READ_CLUSTER_WORKFLOW: lambda _, granted: _look(granted, "cluster"),
    Permission.START_TEARDOWN: lambda _, granted: (
        _start(granted, "teardown") + _look(granted, "teardown")
    ),
    Permission.SEND_TASK_RESULT: _send_task_result,
    Permission.SLACK_SECRET: lambda stack, granted: _secret(stack, granted, granted.slack_secret),
    Permission.HUGGING_FACE_SECRET: lambda stack, granted: _secret(
        stack, granted, granted.hugging_face_secret
    ),
    Permission.RELAY_SECRET: lambda stack, granted: _secret(stack, granted, granted.relay_secret),
    Permission.CLUSTER_CREATE: _cluster_create,
    Permission.CLUSTER_READ: _cluster_read,
    Permission.CLUSTER_DELETE: _cluster_delete,
    Permission.EXISTING_CLUSTERS_READ: _existing_clusters_read,
    Permission.EXISTING_CLUSTERS_JOIN: _existing_clusters_join,
    Permission.EXISTING_CLUSTERS_LEAVE: _existing_clusters_leave,
    Permission.NODE_GROUP_CREATE: _node_group_create,
    Permission.NODE_GROUP_DELETE: _node_group_delete,
    Permission.ADDON_CREATE: _addon_create,
    Permission.FILE_SYSTEM_CREATE: _file_system_create,
    Permission.FILE_SYSTEM_READ: _file_system_read,
    Permission.FILE_SYSTEM_DELETE: lambda stack, granted: delete_tagged(
        stack, "file-system", granted.deployment
    ),
    Permission.DATA_LINK_CREATE: _data_link_create,
    Permission.DATA_LINK_READ: lambda _stack, _granted: [read_kinds("data-link")],
    Permission.DATA_LINK_DELETE: lambda stack, granted: delete_tagged(
        stack, "data-link", granted.deployment
    ),
    Permission.NETWORK_CREATE: _network_create,
    Permission.NETWORK_READ: _network_read,
    Permission.NETWORK_DELETE: lambda stack, granted: delete_tagged(
        stack, "network", granted.deployment
    ),
    Permission.INSTANCE_TYPES_READ: _instance_types_read,
    Permission.PREFLIGHT: _preflight,
    Permission.DATASETS_LIST: _datasets_list,
    Permission.EXISTING_FILE_SYSTEMS_READ: _existing_file_systems_read,
    Permission.ARTIFACTS_READ: _artifacts_read,
    Permission.KUBERNETES: _kubernetes,
    Permission.RESULTS_ACCESS: _results_access,
    Permission.CLOCK: _clock,
}
