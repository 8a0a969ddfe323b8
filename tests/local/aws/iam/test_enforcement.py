"""The front refuses what a principal's policies do not allow, in the words of each service."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    InProcessRuntime,
    LocalAws,
)
from stationmaster.local.aws.iam.account import Account
from stationmaster.local.aws.iam.identities import Identities
from stationmaster.local.aws.wire import ApiError

ARN = "arn:aws:iam::123456789012:role/{}"
NODE_ROLE, ROLE = ARN.format("nodes"), ARN.format("worker")
TRUST = {
    "Effect": "Allow",
    "Principal": {"Service": "ec2.amazonaws.com"},
    "Action": "sts:AssumeRole",
}
Client = Callable[[str], Any]


def statement(*actions: str, resource: str = "*", **condition: Any) -> dict[str, Any]:
    found = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
    return found | ({"Condition": condition} if condition else {})


GRANTS = [
    statement(
        "eks:CreateCluster",
        "eks:CreateNodegroup",
        "eks:TagResource",
        Null={"aws:RequestTag/team": "false"},
    ),
    statement("eks:DescribeCluster", resource="arn:aws:eks:*:*:cluster/ours-*"),
    statement("iam:PassRole", StringEquals={"iam:PassedToService": "eks.amazonaws.com"}),
    statement("iam:GetRole", "iam:ListAttachedRolePolicies", "iam:CreateServiceLinkedRole"),
    statement("ec2:DescribeSubnets", "ec2:DescribeVpcs", "ec2:DescribeSecurityGroups"),
    statement("ec2:DescribeLaunchTemplateVersions", "ec2:RunInstances"),
    statement("ec2:CreateSecurityGroup"),
    statement("ec2:CreateTags", StringEquals={"ec2:CreateAction": "CreateSecurityGroup"}),
    statement("ec2:DeleteSecurityGroup", Null={"aws:ResourceTag/team": "false"}),
    statement(
        "logs:DeleteLogGroup",
        resource="arn:aws:logs:*:*:log-group:*",
        Null={"aws:ResourceTag/team": "false"},
    ),
    statement("s3:GetObject", resource="arn:aws:s3:::ours/*"),
    statement("s3:ListBucket", resource="arn:aws:s3:::ours"),
    statement("events:PutEvents", StringEquals={"events:source": "ours"}),
    statement("dynamodb:PutItem"),
]


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """An endpoint with a network and one bucket."""
    folder: Path = tmp_path_factory.mktemp("aws")
    with LocalAws(state_dir=folder, invoker=InProcessRuntime(), handlers=[], speed=36000) as made:
        made.client("s3").create_bucket(
            Bucket="ours", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        made.client("s3").put_object(Bucket="ours", Key="a", Body=b"text")
        yield made


@pytest.fixture(scope="module")
def network(aws: LocalAws) -> Deployment:
    return aws.deploy(DeploymentSpec(network="stationmaster", roles=["cluster", "nodes"]))


def client_of(aws: LocalAws, *, without: str = "") -> Client:
    """Clients of the principal "worker", who has all of GRANTS anew, or all but one action."""
    eks = {**TRUST, "Principal": {"Service": "eks.amazonaws.com"}}
    for name, trust in (("cluster", eks), ("nodes", TRUST)):
        role = {"trust": [trust], "statements": []}
        aws.identities.add(name, role_arn=ARN.format(name), role=role, values={})
    left = [
        {**each, "Action": [action for action in each["Action"] if action != without]}
        for each in GRANTS
    ]
    return acting(aws, "worker", [each for each in left if each["Action"]])


def acting(aws: LocalAws, name: str, statements: list[dict[str, Any]]) -> Client:
    """Clients of a principal with these rights."""
    role = {"trust": [TRUST], "statements": statements}
    made = aws.identities.add(name, role_arn=ARN.format(name), role=role, values={})
    session = boto3.Session(made.key.key_id, made.key.secret, region_name="us-west-2")
    # Without a version, boto3 signs addresses of S3 in the way of long ago.
    config = Config(retries={"total_max_attempts": 1}, signature_version="v4")
    return lambda service: session.client(service, endpoint_url=aws.url, config=config)  # type: ignore[call-overload]  # the stubs list literal names


@pytest.fixture
def client(aws: LocalAws) -> Client:
    return client_of(aws)


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


WHO = "arn:aws:sts::123456789012:assumed-role/worker/worker"


def not_authorized(action: str, resource: str) -> str:
    return (
        f"User: {WHO} is not authorized to perform: {action} on resource: {resource} because no "
        f"identity-based policy allows the {action} action"
    )


@pytest.mark.parametrize(
    ("service", "call", "asked", "code", "action", "where"),
    [
        (
            *("eks", "describe_cluster", {"name": "theirs"}, "AccessDeniedException"),
            *("eks:DescribeCluster", "arn:aws:eks:us-west-2:123456789012:cluster/theirs"),
        ),
        (
            *("ec2", "describe_instances", {}, "UnauthorizedOperation"),
            *("ec2:DescribeInstances", "*"),
        ),
        (
            *("s3", "put_object", {"Bucket": "ours", "Key": "b", "Body": b""}, "AccessDenied"),
            *("s3:PutObject", '"arn:aws:s3:::ours/b"'),
        ),
    ],
)
def test_refusal_is_in_the_words_of_the_service(
    client: Client, service: str, call: str, asked: Any, code: str, action: str, where: str
) -> None:
    found, message = refused(getattr(client(service), call), **asked)

    of_ec2 = "You are not authorized to perform this operation. " if service == "ec2" else ""
    assert (found, message) == (code, of_ec2 + not_authorized(action, where))


def test_what_is_allowed_is_served(client: Client) -> None:
    assert client("s3").get_object(Bucket="ours", Key="a")["Body"].read() == b"text"
    assert client("s3").list_objects_v2(Bucket="ours", Prefix="a")["KeyCount"] == 1


def test_presigned_address_has_the_rights_of_its_signer(client: Client) -> None:
    s3 = client("s3")
    allowed = s3.generate_presigned_url("get_object", Params={"Bucket": "ours", "Key": "a"})
    denied = s3.generate_presigned_url("get_object", Params={"Bucket": "theirs", "Key": "a"})

    with urllib.request.urlopen(allowed) as answer:
        assert answer.read() == b"text"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(denied)
    assert caught.value.code == 403
    assert b"<Code>AccessDenied</Code>" in caught.value.read()
    late = s3.generate_presigned_url("get_object", {"Bucket": "ours", "Key": "a"}, ExpiresIn=0)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(late)
    assert b"Request has expired" in caught.value.read()


def test_creation_and_deletion_need_the_tag_that_a_condition_names(
    aws: LocalAws, client: Client, network: Deployment
) -> None:
    ec2 = client("ec2")
    tags = [{"ResourceType": "security-group", "Tags": [{"Key": "team", "Value": "a"}]}]
    made: dict[str, Any] = {"Description": "d", "VpcId": network.vpc_id}

    tagged = ec2.create_security_group(GroupName="a", TagSpecifications=tags, **made)["GroupId"]
    bare = ec2.create_security_group(GroupName="b", **made)["GroupId"]

    code, message = refused(ec2.delete_security_group, GroupId=bare)
    assert (code, "ec2:DeleteSecurityGroup" in message) == ("UnauthorizedOperation", True)
    ec2.delete_security_group(GroupId=tagged)
    # What is not there has no tags to ask for.
    assert refused(ec2.delete_security_group, GroupId=tagged)[0] == "InvalidGroup.NotFound"

    logs, delete = aws.client("logs"), client("logs").delete_log_group
    logs.create_log_group(logGroupName="/ours/a", tags={"team": "a"})
    logs.create_log_group(logGroupName="/others/b")
    where = "arn:aws:logs:us-west-2:123456789012:log-group:/others/b"
    denied = ("AccessDeniedException", not_authorized("logs:DeleteLogGroup", where))
    assert refused(delete, logGroupName="/others/b") == denied
    delete(logGroupName="/ours/a")
    assert refused(delete, logGroupName="/ours/a")[0] == "ResourceNotFoundException"


def test_each_event_of_a_batch_is_looked_at(client: Client) -> None:
    entries = [
        {"Source": source, "DetailType": "a", "Detail": json.dumps({})}
        for source in ("ours", "theirs")
    ]

    code, message = refused(client("events").put_events, Entries=entries)

    assert (code, "events:PutEvents" in message) == ("AccessDeniedException", True)
    assert client("events").put_events(Entries=entries[:1])["FailedEntryCount"] == 0


def test_transaction_needs_the_right_of_each_of_its_items(client: Client) -> None:
    key = {"pk": {"S": "a"}}
    items = [{"Delete": {"TableName": "runs", "Key": key}}]

    code, message = refused(client("dynamodb").transact_write_items, TransactItems=items)

    assert code == "AccessDeniedException"
    assert "dynamodb:DeleteItem" in message


def cluster(network: Deployment, name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1.35",
        "roleArn": ARN.format("cluster"),
        "resourcesVpcConfig": {"subnetIds": network.subnet_ids},
        "tags": {"team": "a"},
    } | changes


@pytest.mark.parametrize(
    ("action", "code", "words"),
    [
        ("eks:TagResource", "AccessDeniedException", "nodegroup/ours-groups"),
        ("iam:PassRole", "AccessDeniedException", NODE_ROLE),
        ("iam:GetRole", "AccessDeniedException", NODE_ROLE),
        ("iam:ListAttachedRolePolicies", "AccessDeniedException", NODE_ROLE),
        ("ec2:DescribeSubnets", "AccessDeniedException", "not authorized to perform ec2:Describe"),
        ("iam:CreateServiceLinkedRole", "AccessDeniedException", "AmazonEKSNodegroup"),
        ("ec2:RunInstances", "InvalidRequestException", "launch instances with this launch"),
    ],
)
def test_node_group_needs_what_eks_checks_in_the_callers_name(
    aws: LocalAws, network: Deployment, action: str, code: str, words: str
) -> None:
    owner = aws.client("eks")
    if "ours-groups" not in owner.list_clusters()["clusters"]:
        owner.create_cluster(**cluster(network, "ours-groups"))
        aws.client("ec2").create_launch_template(
            LaunchTemplateName="ours", LaunchTemplateData={"ImageId": "ami-1"}
        )
    aws.identities.account.linked.clear()
    found, message = refused(
        client_of(aws, without=action)("eks").create_nodegroup,
        clusterName="ours-groups",
        nodegroupName="n",
        nodeRole=NODE_ROLE,
        subnets=network.subnet_ids[:1],
        launchTemplate={"name": "ours"},
        tags={"team": "a"},
    )

    assert found == code
    assert action in message
    assert words in message


def test_passed_role_has_to_trust_the_service(client: Client, network: Deployment) -> None:
    code, message = refused(
        client("eks").create_cluster, **cluster(network, "ours-2", roleArn=NODE_ROLE)
    )

    assert code == "InvalidParameterException"
    assert "the trusted entity is not correct" in message


def test_access_entries_are_for_whom_the_policies_name_with_the_policy_they_name(
    aws: LocalAws, network: Deployment
) -> None:
    """A role that may let others in could otherwise make anybody an administrator."""
    eks, ours = aws.client("eks"), "arn:aws:iam::123456789012:role/ours"
    eks.create_cluster(**cluster(network, "entries"))
    aws.finish_lifecycles()
    view, admin = (
        f"arn:aws:eks::aws:cluster-access-policy/AmazonEKS{name}Policy"
        for name in ("View", "ClusterAdmin")
    )
    to_ours = {"eks:principalArn": [ours]}
    of_cluster = {"eks:accessScope": "cluster", "eks:policyArn": view}
    grants = [
        statement("eks:CreateAccessEntry", ArnLike=to_ours),
        statement("eks:AssociateAccessPolicy", StringEquals=of_cluster, ArnLike=to_ours),
    ]
    client = acting(aws, "doorkeeper", grants)("eks")

    entry = {"clusterName": "entries", "principalArn": ours}
    whole: dict[str, Any] = {"policyArn": view, "accessScope": {"type": "cluster"}}
    client.create_access_entry(**entry)
    client.associate_access_policy(**entry, **whole)

    for call, arguments in (
        (client.create_access_entry, entry | {"principalArn": ARN.format("else")}),
        (client.associate_access_policy, entry | whole | {"policyArn": admin}),
        (
            client.associate_access_policy,
            entry | whole | {"accessScope": {"type": "namespace", "namespaces": ["a"]}},
        ),
        (client.associate_access_policy, entry | whole | {"principalArn": ARN.format("else")}),
    ):
        assert refused(call, **arguments)[0] == "AccessDeniedException"


def test_identities_remember_no_more_checks_than_they_may() -> None:
    identities = Identities(Account("123456789012", "us-west-2"), most_asked=2)
    role = {"trust": [TRUST], "statements": []}
    reader = identities.add("reader", role_arn=ROLE, role=role, values={})

    for name in "abc":
        with pytest.raises(ApiError):
            identities.check(reader, "s3", "GetObject", {"Bucket": "ours", "Key": name}, "rest-xml")

    assert [check.resource[-1] for _, check in identities.asked()] == ["a", "b"]
