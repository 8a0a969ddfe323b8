"""Each registry Permission as the narrowest IAM statements that AWS lets us write.

`tagged_kinds` draws resources that are known by their tags, `cluster_permissions` those of EKS.
What AWS cannot narrow down carries the reason, which the AwsSolutions rules are given. Names and
tags come from the domain, so a function can touch only what Stationmaster created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from aws_cdk import aws_iam as iam
from aws_cdk import aws_secretsmanager as secretsmanager

from lambdas.registry import Permission
from stacks.constructs import cluster_permissions as eks
from stacks.constructs.statements import (
    CHOSEN,
    LISTING,
    RESULTS,
    Granted,
    Statement,
    allow,
    arn,
    pass_role,
    service_linked_role,
    service_linked_role_arn,
    via,
)
from stacks.constructs.tagged_kinds import create_tagged, delete_tagged, read_kinds
from stationmaster.aws.account import ACCOUNT_ACTIONS, IMAGE_ACTIONS
from stationmaster.aws.existing_file_systems import LOOK_ACTIONS
from stationmaster.aws.file_system_room import ROOM_ACTIONS
from stationmaster.aws.reservations import RESERVATION_ACTIONS
from stationmaster.aws.schedules import CLOCK_ACTIONS
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import results_prefix

# What DynamoDB does with a customer's key on behalf of the caller.
_KEY_ACTIONS: Final = ("kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey", "kms:DescribeKey")
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


def grant(role: iam.Role, permission: Permission, granted: Granted) -> None:
    """Give `role` what `permission` stands for."""
    allow(role, *_STATEMENTS[permission](granted))


def _table(*actions: str) -> Callable[[Granted], list[Statement]]:
    return lambda granted: [
        Statement(tuple(f"dynamodb:{each}" for each in actions), granted.table_arns),
        Statement(_KEY_ACTIONS, (granted.key.key_arn,), conditions=via("dynamodb")),
    ]


def _start(machine: str, granted: Granted) -> list[Statement]:
    return [Statement(("states:StartExecution",), (granted.machine_arns[machine],))]


def _look(machine: str, granted: Granted) -> list[Statement]:
    executions = granted.machine_arns[machine].replace(":stateMachine:", ":execution:") + ":*"
    reason = "an execution is named after its run or cluster, unknown at deployment"
    return [Statement(("states:DescribeExecution",), (executions,), reason)]


def _start_and_look(machine: str, granted: Granted) -> list[Statement]:
    return _start(machine, granted) + _look(machine, granted)


def _send_task_result(granted: Granted) -> list[Statement]:
    actions = ("states:SendTaskSuccess", "states:SendTaskFailure", "states:SendTaskHeartbeat")
    return [Statement(actions, (granted.machine_arns["train"],))]


def _secret(granted: Granted, secret: secretsmanager.ISecret) -> list[Statement]:
    return [
        Statement(("secretsmanager:GetSecretValue",), (secret.secret_arn,)),
        Statement(("kms:Decrypt",), (granted.key.key_arn,), conditions=via("secretsmanager")),
    ]


def _file_system_create(granted: Granted) -> list[Statement]:
    return [
        *create_tagged(granted, "file-system"),
        # FSx asks in the caller's name whether the security group may be used in the network.
        # Source: Service Authorization Reference, Amazon FSx, dependent actions.
        Statement(("ec2:GetSecurityGroupsForVpc",), (granted.vpc_arn,)),
        service_linked_role("fsx.amazonaws.com"),
    ]


def _data_link_create(granted: Granted) -> list[Statement]:
    """Allow linking buckets to file systems.

    FSx looks at each bucket in the caller's name, and makes a role for each file system with which
    it reads. It asks for the right to write objects even where the link only reads, so a function
    has these rights through FSx only.
    """
    linking = create_tagged(granted, "data-link")
    buckets = granted.linked_bucket_arns
    if not buckets:
        return linking
    through_fsx = {"Bool": {"aws:ViaAWSService": "true"}}
    objects = tuple(f"{bucket}/*" for bucket in buckets)
    named = "objects of a bucket that the deployment names have keys of their own"
    return [
        *linking,
        service_linked_role(_S3_OF_FSX),
        Statement(
            ("iam:AttachRolePolicy", "iam:PutRolePolicy"),
            (service_linked_role_arn(_S3_OF_FSX),),
            "FSx names the role that it makes for each linked file system",
        ),
        Statement(_READ_BUCKET, buckets, conditions=through_fsx),
        Statement(("s3:GetObject", "s3:PutObject"), objects, named, through_fsx),
    ]


def _network_create(granted: Granted) -> list[Statement]:
    in_network = Statement(("ec2:CreateSecurityGroup",), (granted.vpc_arn,))
    return [*create_tagged(granted, "network"), in_network]


def _network_read(_granted: Granted) -> list[Statement]:
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


def _preflight(_granted: Granted) -> list[Statement]:
    """Allow asking what the account may use, and whether an image exists."""
    images = (arn("ecr", "repository", "*", account="*"),)
    return [
        Statement((*ACCOUNT_ACTIONS, *RESERVATION_ACTIONS), ("*",), LISTING),
        Statement(IMAGE_ACTIONS, images, "image= names a repository, unknown at deployment"),
    ]


def _datasets_list(granted: Granted) -> list[Statement]:
    """Allow names, sizes and first bytes, for a plan; nothing without configured buckets."""
    buckets = granted.dataset_bucket_arns
    if not buckets:
        return []
    objects = tuple(f"{bucket}/*" for bucket in buckets)
    return [Statement(("s3:ListBucket",), buckets), Statement(("s3:GetObject",), objects, CHOSEN)]


def _artifacts_read(granted: Granted) -> list[Statement]:
    """Allow the manifest, and what S3 says of the other files.

    Without the right to list the bucket, S3 answers "denied" for what is missing.
    """
    objects = (f"{granted.artifacts_arn}/{results_prefix(RunId('*'))}*",)
    return [
        Statement(("s3:GetObject",), objects, RESULTS),
        Statement(("s3:ListBucket",), (granted.artifacts_arn,)),
        Statement(("kms:Decrypt",), (granted.key.key_arn,), conditions=via("s3")),
    ]


def _slack_secret_write(granted: Granted) -> list[Statement]:
    """Allow a rotated bot token to be kept."""
    uses = ("kms:Decrypt", "kms:GenerateDataKey")
    return [
        Statement(("secretsmanager:PutSecretValue",), (granted.slack_secret.secret_arn,)),
        Statement(uses, (granted.key.key_arn,), conditions=via("secretsmanager")),
    ]


def _clock(granted: Granted) -> list[Statement]:
    schedules = arn("scheduler", "schedule", f"{granted.clock.group}/*")
    return [
        Statement(CLOCK_ACTIONS, (schedules,), "a clock is named after its cluster"),
        pass_role(granted.clock.role, "scheduler.amazonaws.com"),
    ]


def _listing(*actions: str) -> Callable[[Granted], list[Statement]]:
    return lambda _granted: [Statement(actions, ("*",), LISTING)]


_STATEMENTS: Final[Mapping[Permission, Callable[[Granted], list[Statement]]]] = {
    Permission.TABLE_READ: _table("GetItem", "BatchGetItem", "Query"),
    Permission.TABLE_WRITE: _table("PutItem", "UpdateItem", "DeleteItem"),
    Permission.BUS_PUT: lambda granted: [
        Statement(("events:PutEvents",), (granted.bus.event_bus_arn,))
    ],
    Permission.START_TRAIN: partial(_start_and_look, "train"),
    Permission.START_CLUSTER: partial(_start, "cluster"),
    Permission.READ_CLUSTER_WORKFLOW: partial(_look, "cluster"),
    Permission.START_TEARDOWN: partial(_start_and_look, "teardown"),
    Permission.SEND_TASK_RESULT: _send_task_result,
    Permission.SLACK_SECRET: lambda granted: _secret(granted, granted.slack_secret),
    Permission.SLACK_SECRET_WRITE: _slack_secret_write,
    Permission.HUGGING_FACE_SECRET: lambda granted: _secret(granted, granted.hugging_face_secret),
    Permission.RELAY_SECRET: lambda granted: _secret(granted, granted.relay_secret),
    Permission.CLUSTER_CREATE: eks.create_cluster,
    Permission.CLUSTER_READ: eks.read_clusters,
    Permission.CLUSTER_DELETE: eks.delete_cluster,
    Permission.EXISTING_CLUSTERS_READ: eks.find_existing,
    Permission.EXISTING_CLUSTERS_JOIN: eks.join_existing,
    Permission.EXISTING_CLUSTERS_LEAVE: eks.leave_existing,
    Permission.NODE_GROUP_CREATE: eks.create_node_group,
    Permission.NODE_REPLACE: eks.replace_nodes,
    Permission.NODE_GROUP_DELETE: eks.delete_node_group,
    Permission.ADDON_CREATE: eks.create_addon,
    Permission.FILE_SYSTEM_CREATE: _file_system_create,
    Permission.FILE_SYSTEM_READ: lambda _granted: [read_kinds("file-system")],
    Permission.FILE_SYSTEM_DELETE: partial(delete_tagged, family="file-system"),
    Permission.DATA_LINK_CREATE: _data_link_create,
    Permission.DATA_LINK_READ: lambda _granted: [read_kinds("data-link")],
    Permission.DATA_LINK_DELETE: partial(delete_tagged, family="data-link"),
    Permission.NETWORK_CREATE: _network_create,
    Permission.NETWORK_READ: _network_read,
    Permission.NETWORK_DELETE: partial(delete_tagged, family="network"),
    Permission.INSTANCE_TYPES_READ: _listing("ec2:DescribeInstanceTypes"),
    Permission.PREFLIGHT: _preflight,
    Permission.DATASETS_LIST: _datasets_list,
    # Whether nodes of the network reach a file system, for a plan.
    Permission.EXISTING_FILE_SYSTEMS_READ: _listing(*LOOK_ACTIONS),
    Permission.FILE_SYSTEM_ROOM: _listing(*ROOM_ACTIONS),
    Permission.ARTIFACTS_READ: _artifacts_read,
    Permission.KUBERNETES: eks.call_kubernetes,
    Permission.RESULTS_ACCESS: eks.reach_results,
    Permission.CLOCK: _clock,
}
