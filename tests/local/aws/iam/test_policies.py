"""What a policy says of a check: wildcards, conditions, explicit denial, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.local.aws.iam.policies import (
    Check,
    Decision,
    PolicyError,
    decide,
    read_statement,
)

CLUSTER = "arn:aws:eks:us-west-2:111122223333:cluster/stationmaster-a"


def allow(**elements: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": "eks:DeleteCluster", "Resource": "*"} | elements


def decided(check: Check, *documents: dict[str, Any]) -> Decision:
    return decide([read_statement(each, {}) for each in documents], check)


def where(operator: str, key: str, value: Any) -> dict[str, Any]:
    return {"Condition": {operator: {key: value}}}


def deleting(resource: str = CLUSTER, **context: Any) -> Check:
    is_missing = context.pop("is_missing", False)
    known = {f"aws:{name.replace('_', '/')}": value for name, value in context.items()}
    return Check("eks:DeleteCluster", resource, known, is_missing)


TAGGED = where("StringLike", "aws:ResourceTag/team", "a*")
TAGGING = where("Null", "aws:RequestTag/team", "false")
OF_TEAM = {"Resource": CLUSTER.replace("-a", "-${aws:PrincipalTag/team}")}
PASSED = where("StringEquals", "iam:PassedToService", ["x", "eks.amazonaws.com"])
BOTH = {"StringEquals": {"aws:RequestTag/team": "a"}, "Bool": {"aws:ViaAWSService": "true"}}


@pytest.mark.parametrize(
    ("elements", "check", "is_allowed"),
    [
        ({}, deleting(), True),
        ({}, Check("eks:CreateCluster", CLUSTER), False),
        ({"Action": "EKS:delete*"}, deleting(), True),
        ({"Resource": "arn:aws:eks:*:111122223333:cluster/stationmaster-?"}, deleting(), True),
        # No wildcard reaches past a colon.
        ({"Resource": "arn:aws:*/stationmaster-a"}, deleting(), False),
        # A call that AWS does not limit to resources is not allowed by a statement that names some.
        ({"Resource": CLUSTER}, deleting("*"), False),
        (TAGGING, deleting(RequestTag_team=""), True),
        (TAGGING, deleting(), False),
        (TAGGED, deleting(ResourceTag_team="b"), False),
        # AWS says that a resource is not there before it asks for its tags.
        (TAGGED, deleting(is_missing=True), True),
        # A policy variable is what the session's tag says; without the tag it fits nothing.
        (OF_TEAM, deleting(PrincipalTag_team="a"), True),
        (OF_TEAM, deleting(), False),
        (
            PASSED,
            Check("eks:DeleteCluster", CLUSTER, {"iam:PassedToService": "eks.amazonaws.com"}),
            True,
        ),
        ({"Condition": BOTH}, deleting(RequestTag_team="a"), False),
    ],
)
def test_statement_allows_what_fits_it_wholly(
    elements: dict[str, Any], check: Check, is_allowed: bool
) -> None:
    expected = Decision.ALLOWED if is_allowed else Decision.NOT_ALLOWED

    assert decided(check, allow(**elements)) is expected


def test_explicit_deny_outweighs_every_allow() -> None:
    check = Check("eks:DeleteCluster", CLUSTER)

    assert decided(check, allow(), allow(Effect="Deny", Resource=CLUSTER)) is Decision.DENIED


@pytest.mark.parametrize(
    ("elements", "named"),
    [
        ({"NotAction": "eks:*"}, "NotAction"),
        ({"Condition": {"DateLessThan": {"aws:CurrentTime": "2026"}}}, "DateLessThan"),
        ({"Condition": {"StringEquals": {"aws:PrincipalOrgID": "a"}}}, "aws:PrincipalOrgID"),
        ({"Resource": "${nowhere/Table.Arn}"}, "nowhere/Table.Arn"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_when_it_is_read(
    elements: dict[str, Any], named: str
) -> None:
    with pytest.raises(PolicyError, match=named):
        read_statement(allow(**elements), {})
