"""What each role may do: nothing in general, and nothing that another function is there for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from infra_templates import Resource, as_list, of_type, reference, text_of

from lambdas.registry import FUNCTIONS, Permission
from stationmaster.aws.kinds import Actions, actions_by_kind
from stationmaster.domain.bus import EVENT_SOURCE, RELAY_BATCH_DETAIL_TYPE
from stationmaster.domain.names import TAG_CLUSTER_ID, TAG_DEPLOYMENT

Statements = dict[str, list[dict[str, Any]]]

# AWS grants these on everything or not at all, so "*" is the only resource that works.
UNLIMITED = (
    "autoscaling:DescribeScalingActivities",
    "ec2:Describe",
    "eks:DescribeClusterVersions",
    "servicequotas:Get",
    "fsx:DescribeFileSystems",
    "fsx:DescribeDataRepositoryAssociations",
    "cloudwatch:GetMetricStatistics",
    "tag:GetResources",
    "dynamodb:ListStreams",
    "ecr:GetAuthorizationToken",
    "xray:",
    "logs:",
)

# What CDK lets the project that builds the images read: the objects of the deployment's own files.
READS_OF_THE_BUILD = {"s3:GetBucket*", "s3:GetObject*", "s3:List*"}

# Which permissions bring an action that creates, deletes, or reads a secret.
DANGEROUS = {
    "eks:CreateCluster": {Permission.CLUSTER_CREATE},
    "eks:DeleteCluster": {Permission.CLUSTER_DELETE},
    "eks:CreateNodegroup": {Permission.NODE_GROUP_CREATE},
    "eks:DeleteNodegroup": {Permission.NODE_GROUP_DELETE},
    "eks:CreateAccessEntry": {Permission.CLUSTER_CREATE},
    "ec2:RunInstances": {Permission.NODE_GROUP_CREATE},
    "secretsmanager:GetSecretValue": {
        Permission.SLACK_SECRET,
        Permission.HUGGING_FACE_SECRET,
        Permission.RELAY_SECRET,
    },
    "secretsmanager:PutSecretValue": {Permission.SLACK_SECRET_WRITE},
    "dynamodb:PutItem": {Permission.TABLE_WRITE},
    "events:PutEvents": {Permission.BUS_PUT},
    "s3:GetObject": {Permission.ARTIFACTS_READ},
    "s3:PutObject": set(),
    "s3:DeleteObject": set(),
    "states:SendTaskSuccess": {Permission.SEND_TASK_RESULT},
}
OF_EXISTING_CLUSTERS = [each for each in Permission if each.startswith("existing-clusters-")]
# The kinds with ACTIONS, and what creating and deleting each takes.
KINDS = actions_by_kind().values()
VERBS = [
    (action, Permission(f"{kind.permission}-{verb}"))
    for kind in KINDS
    for verb, actions in (("create", kind.create + kind.change), ("delete", kind.delete))
    for action in actions
]
CHANGING = {
    action: {permission for other, permission in VERBS if other == action} for action, _ in VERBS
}


def all_statements(resources: dict[str, Resource]) -> list[dict[str, Any]]:
    return [
        statement
        for policy in of_type(resources, "AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
    ]


def with_action(action: str, statements: Statements) -> list[dict[str, Any]]:
    return [
        each for role in statements.values() for each in role if action in as_list(each["Action"])
    ]


def test_no_statement_allows_every_action(resources: dict[str, Resource]) -> None:
    actions = [action for each in all_statements(resources) for action in as_list(each["Action"])]

    assert actions
    assert {action for action in actions if "*" in action} == READS_OF_THE_BUILD
    holders = {
        name
        for name, policy in of_type(resources, "AWS::IAM::Policy").items()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if READS_OF_THE_BUILD & set(as_list(statement["Action"]))
    }
    assert [name for name in holders if not name.startswith("images/Builder")] == []


def test_every_resource_is_named_where_aws_can(resources: dict[str, Resource]) -> None:
    for statement in all_statements(resources):
        if "*" in as_list(statement["Resource"]):
            loose = [a for a in as_list(statement["Action"]) if not a.startswith(UNLIMITED)]
            assert loose == []


@pytest.mark.parametrize(("action", "permissions"), (DANGEROUS | CHANGING).items())
def test_action_is_held_only_by_functions_with_its_permission(
    action: str, permissions: set[Permission], statements: Statements
) -> None:
    holders = {
        name
        for name, each in statements.items()
        if any(action in as_list(statement["Action"]) for statement in each)
    }

    assert holders == {spec.name for spec in FUNCTIONS if permissions & spec.permissions}


@pytest.mark.parametrize(
    ("action", "kind"),
    [(action, kind) for kind in KINDS for action in (*kind.change, *kind.delete)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_change_and_deletion_are_limited_to_what_is_tagged_with_a_cluster(
    action: str, kind: Actions, statements: Statements
) -> None:
    found = with_action(action, statements)

    conditions = [each["Condition"] for each in found]
    # Several kinds share an action: a group of ours and one of EKS are both security groups.
    of_action = [each for each in KINDS if action in (*each.change, *each.delete)]
    allowed = [condition for each in of_action for condition in _conditions(each)]
    assert all(condition in conditions for condition in _conditions(kind))
    assert all(condition in allowed for condition in conditions)


def _conditions(kind: Actions) -> list[dict[str, dict[str, str]]]:
    """What may be deleted: a cluster's of this deployment, or what names an EKS cluster of ours."""
    ours = {
        "Null": {f"aws:ResourceTag/{TAG_CLUSTER_ID}": "false"},
        "StringEquals": {f"aws:ResourceTag/{TAG_DEPLOYMENT}": "stationmaster"},
    }
    if kind.tag == TAG_CLUSTER_ID:
        return [ours]
    named = {"StringLike": {f"aws:ResourceTag/{kind.tag}": "stationmaster-*"}}
    return [named, ours] if kind.or_tag == TAG_CLUSTER_ID else [named]


@pytest.mark.parametrize(
    "action",
    ["eks:CreateCluster", "eks:CreateNodegroup", *(a for kind in KINDS for a in kind.create)],
)
def test_creation_needs_the_tag_of_the_cluster(action: str, statements: Statements) -> None:
    found = with_action(action, statements)

    assert found
    for statement in found:
        if ":vpc/" in text_of(statement["Resource"]):
            continue  # a security group is created in the VPC, which has its own tags
        assert statement["Condition"] == {
            "Null": {f"aws:RequestTag/{TAG_CLUSTER_ID}": "false"},
            "StringEquals": {f"aws:RequestTag/{TAG_DEPLOYMENT}": "stationmaster"},
        }


@pytest.mark.parametrize("action", ["eks:DeleteCluster", "eks:DeleteNodegroup"])
def test_deletion_in_eks_is_limited_to_the_deployment(action: str, statements: Statements) -> None:
    """The names of clusters are alike in all deployments of an account."""
    found = with_action(action, statements)

    assert found
    for each in found:
        ours = {f"aws:ResourceTag/{TAG_DEPLOYMENT}": "stationmaster"}
        assert each["Condition"] == {"StringEquals": ours}


def test_only_our_functions_are_made_administrators_of_clusters(statements: Statements) -> None:
    ours = ["arn:{Partition}:iam::{AccountId}:role/stationmaster-*-{Region}"]
    found = {
        action: statement["Condition"]
        for statement in statements["ensure-cluster"]
        for action in as_list(statement["Action"])
        if action in ("eks:CreateAccessEntry", "eks:AssociateAccessPolicy")
    }

    made, given = found["eks:CreateAccessEntry"], found["eks:AssociateAccessPolicy"]
    assert made["Null"] == {f"aws:RequestTag/{TAG_CLUSTER_ID}": "false"}
    for condition in (made, given):
        assert [text_of(each) for each in condition["ArnLike"]["eks:principalArn"]] == ours
    assert {key: text_of(value) for key, value in given["StringEquals"].items()} == {
        "eks:accessScope": "cluster",
        "eks:policyArn": "arn:{Partition}:eks::aws:cluster-access-policy/"
        "AmazonEKSClusterAdminPolicy",
    }


def test_eks_statements_reach_our_clusters_only(statements: Statements) -> None:
    for name, role in statements.items():
        for statement in role:
            narrow = [a for a in as_list(statement["Action"]) if not a.startswith(UNLIMITED)]
            if any(action.startswith("eks:") for action in narrow):
                for resource in as_list(statement["Resource"]):
                    assert "/stationmaster-*" in text_of(resource), name


def test_roles_are_passed_by_name_to_a_named_service(resources: dict[str, Resource]) -> None:
    passing = [
        each for each in all_statements(resources) if "iam:PassRole" in as_list(each["Action"])
    ]

    assert passing
    for statement in passing:
        assert "*" not in text_of(statement["Resource"])
        assert statement["Condition"]["StringEquals"]["iam:PassedToService"]


def test_functions_write_only_the_table_of_the_product(statements: Statements) -> None:
    for name, role in statements.items():
        for statement in role:
            if "dynamodb:PutItem" in as_list(statement["Action"]):
                targets = [text_of(each) for each in as_list(statement["Resource"])]
                assert all("Table" in target for target in targets), name
                assert not [target for target in targets if "*" in target], name


def role_named(resources: dict[str, Resource], prefix: str) -> tuple[Resource, list[Any]]:
    """A role, and the statements of the policies that are attached to it."""
    ((name, role),) = [
        (key.partition("/")[2], each)
        for key, each in of_type(resources, "AWS::IAM::Role").items()
        if key.partition("/")[2].startswith(prefix)
    ]
    attached = [
        statement
        for each in of_type(resources, "AWS::IAM::Policy").values()
        if name in map(reference, each["Properties"]["Roles"])
        for statement in each["Properties"]["PolicyDocument"]["Statement"]
    ]
    return role, attached


def test_relay_may_report_and_keep_logs_and_nothing_else(resources: dict[str, Resource]) -> None:
    role, (statement, logs, key) = role_named(resources, "ClusterRolesRelay")

    assert (logs["Action"], key["Action"]) == ("s3:PutObject", "kms:GenerateDataKey")
    own = "/relayed/${aws:PrincipalTag/kubernetes-pod-name}/*"
    assert own in text_of(logs["Resource"])
    assert statement["Action"] == "events:PutEvents"
    assert "Bus" in text_of(statement["Resource"])
    assert statement["Condition"]["StringEquals"] == {
        "events:source": EVENT_SOURCE,
        "events:detail-type": RELAY_BATCH_DETAIL_TYPE,
    }
    assert "ManagedPolicyArns" not in role["Properties"]


def test_saver_may_add_results_and_delete_none(resources: dict[str, Resource]) -> None:
    _, (objects, relayed, listing, key) = role_named(resources, "ClusterRolesSaver")

    assert set(objects["Action"]) == {
        "s3:PutObject",
        "s3:GetObject",
        "s3:AbortMultipartUpload",
        "s3:ListMultipartUploadParts",
    }
    own = "runs/${aws:PrincipalTag/kubernetes-service-account}/*"
    assert text_of(objects["Resource"]).endswith(f"/{own}")
    assert set(listing["Action"]) == {"s3:ListBucket", "s3:ListBucketMultipartUploads"}
    relays = "relayed/${aws:PrincipalTag/kubernetes-service-account}-relay-*"
    assert relayed["Action"] == "s3:GetObject"
    assert text_of(relayed["Resource"]).endswith(f"/{relays}")
    assert listing["Condition"] == {"StringLike": {"s3:prefix": [own, relays]}}
    assert set(key["Action"]) == {"kms:GenerateDataKey", "kms:Decrypt"}
    via = key["Condition"]["StringEquals"]["kms:ViaService"]
    assert text_of(via) == "s3.{Region}.amazonaws.com"


def test_stager_of_a_deployment_without_buckets_may_read_nothing(
    resources: dict[str, Resource],
) -> None:
    role, attached = role_named(resources, "ClusterRolesStager")

    assert attached == []
    assert "ManagedPolicyArns" not in role["Properties"]


# The CDK is imported where it is used: it starts a Node, which other workers do without.
def test_stager_may_read_the_configured_buckets_only() -> None:
    import aws_cdk as cdk
    from aws_cdk import aws_events as events
    from aws_cdk import aws_kms as kms
    from aws_cdk.assertions import Template

    from stacks.constructs.cluster_roles import ClusterRoles

    stack = cdk.Stack(cdk.App(), "roles")
    key = kms.Key(stack, "Key")
    bus = events.EventBus(stack, "Bus")
    ClusterRoles(
        stack,
        "ClusterRoles",
        bus=bus,
        artifacts_arn="arn:aws:s3:::artifacts",
        key=key,
        dataset_bucket_arns=["arn:aws:s3:::research-data"],
        dataset_key_arns=["arn:aws:kms:us-west-2:111122223333:key/k"],
    )
    found = Template.from_stack(stack).to_json()["Resources"]

    (policy,) = [
        each["Properties"]["PolicyDocument"]["Statement"]
        for name, each in found.items()
        if each["Type"] == "AWS::IAM::Policy" and name.startswith("ClusterRolesStager")
    ]
    assert {(each["Action"], each["Resource"]) for each in policy} == {
        ("s3:ListBucket", "arn:aws:s3:::research-data"),
        ("s3:GetObject", "arn:aws:s3:::research-data/*"),
        ("kms:Decrypt", "arn:aws:kms:us-west-2:111122223333:key/k"),
    }


def statements_of(*permissions: Permission, **given: Any) -> list[dict[str, Any]]:
    """What permissions come to, where they need nothing of the other stacks but `given`."""
    import aws_cdk as cdk
    from aws_cdk import aws_iam as iam
    from aws_cdk.assertions import Template

    from stacks.constructs.permissions import grant
    from stacks.constructs.statements import Granted

    stack = cdk.Stack(cdk.App(), "some")
    role = iam.Role(stack, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
    unused = dict.fromkeys(each.name for each in fields(Granted))
    for permission in permissions:
        grant(role, permission, Granted(**{**unused, "deployment": "ours", **given}))
    policies = Template.from_stack(stack).find_resources("AWS::IAM::Policy").values()
    return [
        each for policy in policies for each in policy["Properties"]["PolicyDocument"]["Statement"]
    ]


def test_linking_takes_rights_on_the_linked_buckets_and_through_fsx_only() -> None:
    bucket = "arn:aws:s3:::research-data"

    statements = statements_of(Permission.DATA_LINK_CREATE, linked_bucket_arns=(bucket,))

    of_s3 = [each for each in statements if as_list(each["Action"])[0].startswith("s3:")]
    assert [each["Resource"] for each in of_s3] == [bucket, f"{bucket}/*"]
    assert {str(each["Condition"]) for each in of_s3} == {
        str({"Bool": {"aws:ViaAWSService": "true"}})
    }
    assert of_s3[1]["Action"] == ["s3:GetObject", "s3:PutObject"]
    of_roles = [each for each in statements if as_list(each["Action"])[0].startswith("iam:")]
    assert [as_list(each["Action"]) for each in of_roles] == [
        ["iam:CreateServiceLinkedRole"],
        ["iam:AttachRolePolicy", "iam:PutRolePolicy"],
    ]
    for each in of_roles:
        where = "role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/*"
        assert text_of(each["Resource"]).endswith(where)


def test_eks_clusters_of_others_are_read_and_only_the_products_own_associations_change() -> None:
    statements = statements_of(*OF_EXISTING_CLUSTERS, eks_clusters=("team-gpu",))

    changes = {
        action: each
        for each in statements
        for action in as_list(each["Action"])
        if not action.startswith(("eks:Describe", "eks:List", "sagemaker:Describe", "pricing:Get"))
    }
    assert {*changes} == {
        "eks:CreatePodIdentityAssociation",
        "eks:DeletePodIdentityAssociation",
        "eks:TagResource",
    }
    of_hyperpod = ("sagemaker:DescribeCluster", "pricing:GetProducts")
    named = [each for each in statements if each["Action"] not in of_hyperpod]
    assert all("team-gpu" in text_of(each["Resource"]) for each in named)
    for action in ("eks:CreatePodIdentityAssociation", "eks:DeletePodIdentityAssociation"):
        assert "stationmaster:deployment': 'ours'" in str(changes[action]["Condition"])


def test_without_eks_clusters_nothing_of_them_is_granted() -> None:
    assert statements_of(*OF_EXISTING_CLUSTERS, eks_clusters=()) == []


def test_data_of_the_named_buckets_is_listed_and_looked_into() -> None:
    statements = statements_of(
        Permission.DATASETS_LIST, dataset_bucket_arns=("arn:aws:s3:::books",)
    )

    assert {each["Action"]: each["Resource"] for each in statements} == {
        "s3:ListBucket": "arn:aws:s3:::books",
        "s3:GetObject": "arn:aws:s3:::books/*",
    }


@pytest.mark.parametrize(
    ("prefix", "account"),
    [
        ("ClusterRolesRelay", ["stationmaster-relay", "stationmaster-*-relay"]),
        ("ClusterRolesSaver", ["*-????????"]),
        ("ClusterRolesStager", ["stationmaster-stager", "stationmaster-*-stager"]),
        ("ClusterRolesFsxCsi", ["fsx-csi-controller-sa"]),
    ],
)
def test_pod_role_trusts_one_account_of_the_clusters_that_runs_may_use(
    prefix: str, account: list[str], resources: dict[str, Resource]
) -> None:
    role, _ = role_named(resources, prefix)
    trust = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]

    actions = {action for each in trust for action in as_list(each["Action"])}
    assert actions == {"sts:AssumeRole", "sts:TagSession"}
    for statement in trust:
        assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
        # Pod Identity sends no aws:SourceArn: a condition on it trusts nobody.
        assert statement["Condition"] == {
            "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
            "StringLike": {
                "aws:RequestTag/eks-cluster-name": ["stationmaster-*"],
                "aws:RequestTag/kubernetes-service-account": account,
            },
        }


def test_node_role_holds_what_al2023_nodes_need(resources: dict[str, Resource]) -> None:
    role, _ = role_named(resources, "ClusterRolesNodes")

    policies = {text_of(arn).rpartition("/")[2] for arn in role["Properties"]["ManagedPolicyArns"]}
    assert policies == {
        "AmazonEKSWorkerNodePolicy",
        "AmazonEKS_CNI_Policy",
        "AmazonEC2ContainerRegistryPullOnly",
    }
