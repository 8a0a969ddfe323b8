"""IAM statements for the kinds of AWS resources that carry their cluster's tag.

Each kind states in its `ACTIONS` what its verbs take; a new kind changes nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stacks.constructs.statements import LISTING, Granted, Statement, arn
from stationmaster.aws.kinds import Actions, actions_by_kind

_IDS: Final = (
    "AWS chooses the id at creation; the condition on the tag limits it to clusters' resources"
)


def create_tagged(granted: Granted, family: str) -> list[Statement]:
    """Allow creating the kinds of a family: each call has to tag what it creates."""
    statements: list[Statement] = []
    for kind in _kinds(family):
        resources = (_any(kind.resource),)
        if kind.create:
            statements.append(Statement(kind.create, resources, _IDS, granted.tagged))
        if kind.parent:
            here = tuple(each for each in kind.create if not each.endswith(":TagResource"))
            statements.append(Statement(here, (_any(kind.parent),), _IDS, granted.tagged))
        if kind.create and kind.resource.startswith("ec2:"):
            creating = [action.removeprefix("ec2:") for action in kind.create]
            only = {"StringEquals": {"ec2:CreateAction": creating}}
            statements.append(Statement(("ec2:CreateTags",), resources, _IDS, only))
        if kind.change:
            statements.append(Statement(kind.change, resources, _IDS, _tagged(kind, granted)))
    return statements


def read_kinds(family: str, *more: str) -> Statement:
    """Allow listing the kinds of a family, and `more` actions that AWS does not limit either."""
    actions = {action for kind in _kinds(family) for action in kind.read}
    return Statement(tuple(sorted(actions.union(more))), ("*",), LISTING)


def delete_tagged(granted: Granted, family: str) -> list[Statement]:
    """Allow deleting the kinds of a family, by their tags."""
    deletable = [kind for kind in _kinds(family) if kind.delete]
    conditions = [(kind, _tagged(kind, granted)) for kind in deletable]
    conditions += [(kind, _tagged_as(kind.or_tag, granted)) for kind in deletable if kind.or_tag]
    return [
        Statement(kind.delete, (_any(kind.resource),), _IDS, condition)
        for kind, condition in conditions
    ]


def _kinds(family: str) -> list[Actions]:
    return [kind for kind in actions_by_kind().values() if kind.permission == family]


def _any(type_name: str) -> str:
    """Write the ARNs of all resources of a type."""
    service, _, resource = type_name.partition(":")
    return arn(service, resource, "*", sep=":" if service == "logs" else "/")


def _tagged(kind: Actions, granted: Granted) -> Mapping[str, Any]:
    """Require that a resource is a cluster's, and this deployment's where its tags can say."""
    if kind.tag_value == "*":
        return _tagged_as(kind.tag, granted)
    return {"StringLike": {f"aws:ResourceTag/{kind.tag}": kind.tag_value}}


def _tagged_as(tag: str, granted: Granted) -> Mapping[str, Any]:
    return {"Null": {f"aws:ResourceTag/{tag}": "false"}, **granted.own}
