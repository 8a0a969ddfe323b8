"""IAM statements for the kinds of AWS resources that carry their cluster's tag.

Each kind states in its `ACTIONS` what its verbs take; a new kind changes nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import aws_cdk as cdk

from stacks.constructs.statements import (
    LISTING,
    Statement,
    arn,
    of_deployment,
    tagged_at_creation,
)
from stationmaster.aws.kinds import Actions, actions_by_module

_IDS: Final = (
    "AWS chooses the id at creation; the condition on the tag limits it to clusters' resources"
)


def create_tagged(stack: cdk.Stack, family: str, deployment: str) -> list[Statement]:
    """Allow creating the kinds of a family: each call has to tag what it creates."""
    statements: list[Statement] = []
    tagged = tagged_at_creation(deployment)
    for kind in _kinds(family):
        resources = (_any(stack, kind.resource),)
        if kind.create:
            statements.append(Statement(kind.create, resources, _IDS, tagged))
        if kind.parent:
            here = tuple(each for each in kind.create if not each.endswith(":TagResource"))
            parents = (_any(stack, kind.parent),)
            statements.append(Statement(here, parents, _IDS, tagged))
        if kind.create and kind.resource.startswith("ec2:"):
            creating = [action.removeprefix("ec2:") for action in kind.create]
            only = {"StringEquals": {"ec2:CreateAction": creating}}
            statements.append(Statement(("ec2:CreateTags",), resources, _IDS, only))
        if kind.change:
            statements.append(Statement(kind.change, resources, _IDS, _tagged(kind, deployment)))
    return statements


def read_kinds(family: str, *more: str) -> Statement:
    """Allow listing the kinds of a family, and `more` actions that AWS does not limit either."""
    actions = {action for kind in _kinds(family) for action in kind.read}
    return Statement(tuple(sorted(actions.union(more))), ("*",), LISTING)


def delete_tagged(stack: cdk.Stack, family: str, deployment: str) -> list[Statement]:
    """Allow deleting the kinds of a family, by their tags."""
    return [
        Statement(kind.delete, (_any(stack, kind.resource),), _IDS, condition)
        for kind in _kinds(family)
        if kind.delete
        for condition in (_tagged(kind, deployment), *_tagged_otherwise(kind, deployment))
    ]


def _kinds(family: str) -> list[Actions]:
    return [kind for kind in actions_by_module().values() if kind.permission == family]


def _any(stack: cdk.Stack, type_name: str) -> str:
    """Write the ARNs of all resources of a type."""
    service, _, resource = type_name.partition(":")
    if service == "logs":
        return stack.format_arn(
            service=service,
            resource=resource,
            resource_name="*",
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )
    return arn(stack, service, resource, "*")


def _tagged_otherwise(kind: Actions, deployment: str) -> list[Mapping[str, Mapping[str, str]]]:
    return [_tagged_as(kind.or_tag, deployment)] if kind.or_tag else []


def _tagged(kind: Actions, deployment: str) -> Mapping[str, Mapping[str, str]]:
    """Require that a resource is a cluster's, and this deployment's where its tags can say."""
    if kind.tag_value == "*":
        return _tagged_as(kind.tag, deployment)
    return {"StringLike": {f"aws:ResourceTag/{kind.tag}": kind.tag_value}}


def _tagged_as(tag: str, deployment: str) -> Mapping[str, Mapping[str, str]]:
    return {"Null": {f"aws:ResourceTag/{tag}": "false"}, **of_deployment(deployment)}
