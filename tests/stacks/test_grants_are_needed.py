"""No grant is there for nothing: without it, something that a run does is refused.

Each action of each statement is taken away in turn, and the checks of recorded runs (to a
receipt, kept, on a cluster and a file system of others, with linked data) are decided again. What
no recorded run needs is asked for on a path that only the source shows, or by AWS itself.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from botocore import xform_name
from recorded_checks import MADE, recorded

from stationmaster.local.aws import InProcessRuntime, LocalAws
from stationmaster.local.aws.iam.account import Account
from stationmaster.local.aws.iam.needs import PREFIXES, checks_of
from stationmaster.local.aws.iam.policies import Statement, decide
from stationmaster.local.aws.wire import service_model
from stationmaster.local.mode import ARTIFACTS_BUCKET, DEPLOYMENT, REPOSITORY
from stationmaster.local.product import committed_policies, give_roles

# What AWS does with a role by itself.
BY_AWS = {
    "logs:CreateLogStream": "Lambda writes a function's log with the function's role",
    "logs:PutLogEvents": "Lambda writes a function's log with the function's role",
    "xray:PutTraceSegments": "the functions' traces, by the daemon that Lambda runs",
    "xray:PutTelemetryRecords": "the functions' traces, by the daemon that Lambda runs",
    "sqs:SendMessage": "Lambda sends what a function has failed at to its destination",
    "sqs:GetQueueUrl": "the CDK grants it with sqs:SendMessage",
    "sqs:GetQueueAttributes": "the CDK grants it with sqs:SendMessage",
    "dynamodb:DescribeStream": "Lambda reads the table's stream with the consumer's role",
    "dynamodb:GetRecords": "Lambda reads the table's stream with the consumer's role",
    "dynamodb:GetShardIterator": "Lambda reads the table's stream with the consumer's role",
    "dynamodb:ListStreams": "Lambda reads the table's stream with the consumer's role",
    "kms:Decrypt": "Lambda reads the table's stream, which is encrypted",
    "kms:DescribeKey": "the CDK grants it with the stream's kms:Decrypt",
    "lambda:InvokeFunction": "the scheduler calls the function that a clock names",
}
# What only a rare path asks for, in a way that neither a recorded run nor a call shows.
RARELY = {
    "ec2:CreateTags": "placement groups are made for instances with EFA only, and tagged",
    "kms:GenerateDataKey": "a bot token that is renewed is written to the secret, encrypted",
    "dynamodb:UpdateItem": "the reaper's memory of what it has found without an owner",
    "ec2:TerminateInstances": "instances that outlive their node group",
    "ec2:DescribeVolumes": "the reaper's look at the whole account",
    "tag:GetResources": "the reaper's look at the whole account",
}
# botocore's names of services that IAM calls otherwise.
MODELS = {"servicequotas": "service-quotas", "tag": "tagging"}
Grant = tuple[str, Statement]


@cache
def roles() -> dict[str, tuple[Statement, ...]]:
    """The statements of each role that local mode has."""
    aws = LocalAws(state_dir=Path(), invoker=InProcessRuntime(), handlers=[])
    give_roles(
        aws,
        MADE,
        text=committed_policies(REPOSITORY),
        deployment=DEPLOYMENT,
        table=DEPLOYMENT,
        bucket=ARTIFACTS_BUCKET,
    )
    return {each.name: each.statements for each in aws.identities.principals()}


@cache
def needed() -> frozenset[Grant]:
    """Each action with a statement that a recorded run would miss it in."""
    found: set[Grant] = set()
    for name, checks in recorded().items():
        for check in checks:
            # Of permissions that overlap, each is needed by the runs that have it alone.
            found |= {
                (check.action, statement)
                for statement in roles().get(name, ())
                if statement.applies(check) and not without(statement, check.action).applies(check)
            }
    return frozenset(found)


def without(statement: Statement, action: str) -> Statement:
    left = tuple(each for each in statement.actions if each.lower() != action.lower())
    return Statement(statement.effect, left, statement.resources, statement.conditions)


@cache
def called() -> frozenset[str]:
    """The actions of every call of the AWS SDK that the product's source has."""
    words = {
        word
        for folder in ("stationmaster", "bot", "lambdas")
        for path in (REPOSITORY / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for word in (
            [node.attr]
            if isinstance(node, ast.Attribute)
            else [node.value]
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            else []
        )
    }
    account = Account("123456789012", "us-west-2")
    services = {action.partition(":")[0] for action in granted()} - {"iam", "kms", "sqs"}
    signing = {prefix: name for name, prefix in PREFIXES.items()}
    return frozenset(
        check.action
        for prefix in services
        for operation in service_model(MODELS.get(prefix, prefix)).operation_names
        if xform_name(operation) in words
        for check in checks_of(account, signing.get(prefix, prefix), operation, {})
    )


def granted() -> dict[str, set[Statement]]:
    """Each granted action with its statements, equal ones of several roles once."""
    found: dict[str, set[Statement]] = {}
    for statements in roles().values():
        for statement in statements:
            for action in statement.actions:
                found.setdefault(action, set()).add(statement)
    return found


@pytest.mark.parametrize("action", sorted(granted()))
def test_something_fails_without_the_granted_action(action: str) -> None:
    for statement in granted()[action]:
        if (action, statement) in needed() or action in BY_AWS or action in RARELY:
            continue
        assert action in called(), (
            f"nothing needs {action} on {', '.join(statement.resources)}: take the grant away, or "
            "say in RARELY what asks for it"
        )


def test_recorded_runs_are_allowed_what_they_asked_for() -> None:
    refused = {
        (name, check.action, check.resource)
        for name, checks in recorded().items()
        for check in checks
        if decide(roles()[name], check) != "allowed"
    }

    assert refused == set()


def test_most_grants_are_needed_by_a_recorded_run() -> None:
    exercised = {action for action, _ in needed()}

    assert len(exercised) > 60
    assert {
        "iam:ListAttachedRolePolicies",
        "ec2:GetSecurityGroupsForVpc",
        "iam:PassRole",
        "iam:PutRolePolicy",
        "fsx:DeleteFileSystem",
        "s3:PutObject",
        "scheduler:CreateSchedule",
    } <= exercised
