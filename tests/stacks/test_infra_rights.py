"""What the role needs with which CloudFormation makes the stacks: rights.py of the templates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from infra_templates import Resource, of_type, templates_of, text_of
from syntheses import PRIVATE

from stacks import rights


def _resources(assembly: Path) -> list[Resource]:
    return [
        resource
        for template in templates_of(assembly).values()
        for resource in template["Resources"].values()
    ]


def _allowed(policies: list[dict[str, Any]], action: str) -> Iterator[dict[str, Any]]:
    for policy in policies:
        yield from (each for each in policy["Statement"] if action in each["Action"])


@pytest.mark.parametrize("variant", ["main", "existing", "private"])
def test_policies_have_all_actions_of_the_types_and_fit_into_managed_policies(
    variant: str, syntheses: Path
) -> None:
    resources = _resources(syntheses / variant)
    known = rights.known_actions()

    policies = rights.execution_policies(resources)

    needed = {action for each in resources for action in known[each["Type"]]}
    if variant == "private":
        needed -= {"iam:DeleteRolePermissionsBoundary"}  # which it is not to delete
    assert not [action for action in needed if not list(_allowed(policies, action))]
    assert all(rights.size_of(policy) <= rights.LIMIT for policy in policies)
    assert len(policies) <= 10  # as many as a role takes


def test_policies_reach_roles_of_the_deployment_only_and_keep_their_boundary(
    syntheses: Path,
) -> None:
    resources = _resources(syntheses / "private")
    roles = of_type({str(n): each for n, each in enumerate(resources)}, "AWS::IAM::Role").values()

    policies = rights.execution_policies(resources)

    (passed,) = _allowed(policies, "iam:PassRole")
    (created,) = _allowed(policies, "iam:CreateRole")
    (deleted,) = _allowed(policies, "iam:DeleteRole")
    path = "arn:*:iam::*:role/teams/ml/stationmaster-*"
    assert (passed["Resource"], created["Resource"]) == (path, path)
    assert deleted["Resource"] == [path, "arn:*:iam::*:policy/stationmaster-*"]
    boundary = {"iam:PermissionsBoundary": PRIVATE["permissions_boundary"]}
    assert created["Condition"] == {"StringEquals": boundary}
    assert not list(_allowed(policies, "iam:DeleteRolePermissionsBoundary"))
    assert "lambda.amazonaws.com" in passed["Condition"]["StringEquals"]["iam:PassedToService"]
    for role in roles:  # those without a name are named after their stack
        name = text_of(role["Properties"].get("RoleName", "stationmaster-stack-role"))
        assert fnmatchcase(f"arn:aws:iam::1:role/teams/ml/{name}", path)


def test_type_without_known_actions_is_named_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"has no actions of AWS::New::Thing; run "):
        rights.execution_policies([{"Type": "AWS::New::Thing"}, {"Type": "AWS::KMS::Key"}])


def test_table_says_what_the_schemas_of_the_pinned_linter_say() -> None:
    from handler_schemas import actions_of  # which takes two seconds

    handlers = json.loads(rights.TABLE.read_text())["handlers"]

    assert handlers == actions_of(handlers)
