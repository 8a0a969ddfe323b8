"""Who may let whom into clusters: the IAM side of `stationmaster.aws.access_entries`.

A function that makes access entries could otherwise make anybody an administrator of a cluster. So
the statements name the roles that may be let in, each with the access policy that it has. They name
the functions' roles by a pattern: the list of all would not fit into the role's policy. Inside a
cluster of the product the functions stay administrators, because they install operators and roles.

Source: Service Authorization Reference, Amazon EKS: condition keys of CreateAccessEntry and
AssociateAccessPolicy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk

from stacks.constructs.statements import NAMED, Statement, arn
from stationmaster.aws.access_entries import ACCESS_POLICIES, ADMIN_POLICY, VIEW_POLICY
from stationmaster.domain.names import cluster_name


def let_in(
    stack: cdk.Stack, *, functions: str, people: tuple[str, ...], tagged: Mapping[str, Any]
) -> list[Statement]:
    """Let in the roles like `functions` as administrators, and those of `people` to look.

    `tagged` is the condition on the tags of an entry.
    """
    given = [(ADMIN_POLICY, (functions,)), (VIEW_POLICY, people)]
    return [
        statement
        for policy, roles in given
        if roles
        for statement in (_make(stack, roles, tagged), _give(stack, policy, roles))
    ]


def _make(stack: cdk.Stack, roles: tuple[str, ...], tagged: Mapping[str, Any]) -> Statement:
    """Allow access entries of these roles."""
    return Statement(
        ("eks:CreateAccessEntry",),
        (arn(stack, "eks", "cluster", cluster_name("*")),),
        NAMED,
        {**tagged, "ArnLike": {"eks:principalArn": list(roles)}},
    )


def _give(stack: cdk.Stack, policy: str, roles: tuple[str, ...]) -> Statement:
    """Allow giving these roles one access policy, for the whole cluster."""
    whole = {
        "eks:accessScope": "cluster",
        "eks:policyArn": f"arn:{stack.partition}:{ACCESS_POLICIES}/{policy}",
    }
    return Statement(
        ("eks:AssociateAccessPolicy",),
        (arn(stack, "eks", "access-entry", f"{cluster_name('*')}/*"),),
        NAMED,
        {"StringEquals": whole, "ArnLike": {"eks:principalArn": list(roles)}},
    )
