"""The account of local mode has the roles of a deployment, with the policies as synthesized."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lambdas.registry import FUNCTIONS
from stationmaster.local.aws import Deployment, InProcessRuntime, LocalAws
from stationmaster.local.aws.iam.policies import Check, PolicyError, decide
from stationmaster.local.mode import REPOSITORY
from stationmaster.local.product import ROLES, committed_policies, give_roles

BUCKET = "arn:aws:s3:::results"
OF_RUN = {"aws:PrincipalTag/kubernetes-service-account": "a-1"}
TABLE = "arn:aws:dynamodb:us-west-2:123456789012:table/runs"


def account(folder: Path, text: str) -> LocalAws:
    aws = LocalAws(state_dir=folder, invoker=InProcessRuntime(), handlers=[])
    made = Deployment(
        role_arns={name: f"arn:aws:iam::123456789012:role/{name}" for name in ROLES.values()},
        secret_arns={name: f"arn:{name}" for name in ("slack", "huggingface", "relay")},
        vpc_id="vpc-1",
    )
    give_roles(aws, made, text=text, deployment="ours", table="runs", bucket="results")
    return aws


def test_every_function_and_pod_acts_with_a_role_of_its_own(tmp_path: Path) -> None:
    aws = account(tmp_path, committed_policies(REPOSITORY))

    principals = [aws.identities.named(each.name) for each in FUNCTIONS]
    assert {each.name for each in principals if each} == {each.name for each in FUNCTIONS}
    assert all("lambda.amazonaws.com" in each.trusted for each in principals if each)
    for name in ROLES.values():
        found = aws.identities.named(name)
        assert aws.identities.of_role(found.role_arn) == found
        assert aws.identities.of_key(found.key.key_id) == found


@pytest.mark.parametrize(
    ("changes", "is_trusted"),
    [
        ({}, True),
        ({"eks-cluster-name": "team-gpu"}, True),
        ({"eks-cluster-name": "somebody-elses"}, False),
        ({"kubernetes-service-account": "default"}, False),
    ],
)
def test_role_trusts_its_own_account_in_own_and_configured_clusters(
    tmp_path: Path, changes: dict[str, str], is_trusted: bool
) -> None:
    """A guest's pods take their roles on as those of the product's own clusters do."""
    text = committed_policies(REPOSITORY).replace("${eks-cluster}", "team-gpu")
    identities = account(tmp_path, text).identities
    tags = {
        "eks-cluster-name": "stationmaster-tiny-llama-b0e1c64b",
        "kubernetes-service-account": "stationmaster-relay",
    } | changes

    key = identities.assume(identities.named("relay").role_arn, tags)

    assert (key is not None) == is_trusted
    assert key is None or getattr(identities.of_key(key.key_id), "name", "") == "relay"


START = Check(
    "states:StartExecution", "arn:aws:states:us-west-2:123456789012:stateMachine:teardown"
)


@pytest.mark.parametrize(
    ("role", "check", "is_allowed"),
    [
        ("prepare-run", Check("dynamodb:PutItem", TABLE), True),
        ("prepare-run", Check("dynamodb:PutItem", f"{TABLE}-of-others"), False),
        ("start-teardown", Check("dynamodb:PutItem", TABLE), False),
        ("start-teardown", START, True),
        ("saver", Check("s3:PutObject", f"{BUCKET}/runs/a-1/x", OF_RUN), True),
        ("saver", Check("s3:GetObject", f"{BUCKET}/runs/b-1/x", OF_RUN), False),
        ("saver", Check("s3:PutObject", f"{BUCKET}/runs/a-1/x"), False),
        ("saver", Check("s3:ListBucket", BUCKET, OF_RUN | {"s3:prefix": "runs/a-1/"}), True),
        ("saver", Check("s3:ListBucket", BUCKET, OF_RUN | {"s3:prefix": "runs/"}), False),
        ("saver", Check("s3:ListBucket", BUCKET, OF_RUN), False),
        ("relay", Check("s3:PutObject", f"{BUCKET}/runs/a/model/x"), False),
    ],
)
def test_policies_name_what_local_mode_has(
    tmp_path: Path, role: str, check: Check, is_allowed: bool
) -> None:
    aws = account(tmp_path, committed_policies(REPOSITORY))

    assert (decide(aws.identities.named(role).statements, check) == "allowed") is is_allowed


def test_policy_that_names_what_local_mode_does_not_know_is_refused(tmp_path: Path) -> None:
    statement = {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "${data/New.Arn}"}
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "lambda"}}
    role = {"trust": [trust], "managed": [], "statements": [statement]}

    with pytest.raises(PolicyError, match=r"data/New\.Arn.*stationmaster/local/product"):
        account(tmp_path, json.dumps({"workflow/Roles/reaper": role}))
