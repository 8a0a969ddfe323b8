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


@pytest.mark.parametrize(
    ("elements", "check", "expected"),
    [
        ({}, Check("eks:DeleteCluster", CLUSTER), Decision.ALLOWED),
        ({}, Check("eks:CreateCluster", CLUSTER), Decision.NOT_ALLOWED),
        ({"Action": "EKS:delete*"}, Check("eks:DeleteCluster", CLUSTER), Decision.ALLOWED),
        (
            {"Resource": "arn:aws:eks:*:111122223333:cluster/stationmaster-?"},
            Check("eks:DeleteCluster", CLUSTER),
            Decision.ALLOWED,
        ),
        # No wildcard reaches past a colon.
        ({"Resource": "arn:aws:*/stationmaster-a"}, Check("eks:DeleteCluster", CLUSTER), "not"),
        # A call that AWS does not limit to resources is not allowed by a statement that names some.
        ({"Resource": CLUSTER}, Check("eks:DeleteCluster"), Decision.NOT_ALLOWED),
        (
            {"Condition": {"Null": {"aws:RequestTag/team": "false"}}},
            Check("eks:DeleteCluster", CLUSTER, {"aws:RequestTag/team": ""}),
            Decision.ALLOWED,
        ),
        (
            {"Condition": {"Null": {"aws:RequestTag/team": "false"}}},
            Check("eks:DeleteCluster", CLUSTER),
            Decision.NOT_ALLOWED,
        ),
        (
            {"Condition": {"StringLike": {"aws:ResourceTag/team": "a*"}}},
            Check("eks:DeleteCluster", CLUSTER, {"aws:ResourceTag/team": "b"}),
            Decision.NOT_ALLOWED,
        ),
        # A policy variable is what the session's tag says; without the tag it fits nothing.
        (
            {"Resource": CLUSTER.replace("-a", "-${aws:PrincipalTag/team}")},
            Check("eks:DeleteCluster", CLUSTER, {"aws:PrincipalTag/team": "a"}),
            Decision.ALLOWED,
        ),
        (
            {"Resource": CLUSTER.replace("-a", "-${aws:PrincipalTag/team}")},
            Check("eks:DeleteCluster", CLUSTER),
            Decision.NOT_ALLOWED,
        ),
        # AWS says that a resource is not there before it asks for its tags.
        (
            {"Condition": {"StringLike": {"aws:ResourceTag/team": "a*"}}},
            Check("eks:DeleteCluster", CLUSTER, is_missing=True),
            Decision.ALLOWED,
        ),
        (
            {"Condition": {"StringEquals": {"iam:PassedToService": ["x", "eks.amazonaws.com"]}}},
            Check("eks:DeleteCluster", CLUSTER, {"iam:PassedToService": "eks.amazonaws.com"}),
            Decision.ALLOWED,
        ),
        (
            {
                "Condition": {
                    "StringEquals": {"events:source": "ours"},
                    "Bool": {"aws:ViaAWSService": "true"},
                }
            },
            Check("eks:DeleteCluster", CLUSTER, {"events:source": "ours"}),
            Decision.NOT_ALLOWED,
        ),
    ],
)
def test_statement_allows_what_fits_it_wholly(
    elements: dict[str, Any], check: Check, expected: str
) -> None:
    wanted = Decision.NOT_ALLOWED if expected == "not" else expected

    assert decided(check, allow(**elements)) == wanted


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
