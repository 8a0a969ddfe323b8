"""What the templates ask of IAM: `python -m stacks.rights`, the last part of `make synth`.

Beside the templates in cdk.out it writes the policies of the role with which CloudFormation makes
everything. handler_actions.json has the actions of each type: those of its handlers, as
CloudFormation's resource schemas name them (tests/stacks/handler_schemas.py writes these, also of
new types in cdk.out), and what the services' documentation asks for besides.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from stacks.packages import ROOT
from stationmaster.domain.names import TAG_DEPLOYMENT

# Source: IAM User Guide, "IAM and AWS STS quotas": of a managed policy, without white space.
LIMIT: Final = 6_144
PAGE: Final = "docs/deploy-actions.md"
TABLE: Final = ROOT / "stacks" / "handler_actions.json"
_FOLDER: Final = ROOT / "cdk.out"
# Where roles have to have a boundary, whoever may do this without one is an administrator.
_BOUNDED: Final = {
    f"iam:{name}"
    for name in ("AttachRolePolicy", "CreateRole", "PutRolePermissionsBoundary", "PutRolePolicy")
}

Json = dict[str, Any]


def known_actions() -> dict[str, list[str]]:
    """List the actions that CloudFormation's role needs, by the resource's type."""
    table = json.loads(TABLE.read_text())
    more = table["documented"]
    return {kind: sorted({*each, *more.get(kind, ())}) for kind, each in table["handlers"].items()}


def execution_policies(resources: list[Json]) -> list[Json]:
    """Write managed policies that let CloudFormation's role make, change and delete the resources.

    Raises:
        ValueError: one sentence about a type whose actions are not known.
    """
    kinds, known = {each["Type"] for each in resources}, known_actions()
    if lacking := sorted(kind for kind in kinds if not known.get(kind)):
        raise ValueError(
            f"{TABLE.relative_to(ROOT)} has no actions of {', '.join(lacking)}; "
            "run .venv/bin/python tests/stacks/handler_schemas.py, or add them under documented"
        )
    # Each stack asks for the version of the bootstrap, in a parameter.
    actions = {"ssm:GetParameters"}.union(*(known[kind] for kind in kinds))
    services = sorted({action.partition(":")[0] for action in actions} - {"iam"})
    policies: list[Json] = []
    for statement in (
        *(_allow((a for a in actions if a.startswith(f"{each}:")), "*") for each in services),
        *_on_roles(actions, [each["Properties"] for each in resources if "::Role" in each["Type"]]),
    ):
        if not policies or size_of(policies[-1]) + size_of(statement) + 1 > LIMIT:
            policies.append({"Version": "2012-10-17", "Statement": []})
        policies[-1]["Statement"].append(statement)
    return policies


def _on_roles(actions: set[str], roles: list[Json]) -> Iterator[Json]:
    """Limit what concerns roles to those of the deployment, whose names begin with its name."""
    (name,) = {
        tag["Value"] for role in roles for tag in role["Tags"] if tag["Key"] == TAG_DEPLOYMENT
    }
    ((path, boundary),) = {(r.get("Path", "/"), r.get("PermissionsBoundary")) for r in roles}
    trusts = (each for role in roles for each in role["AssumeRolePolicyDocument"]["Statement"])
    ours = f"arn:*:iam::*:role{path}{name}-*"
    rest = {each for each in actions if each.startswith("iam:")}
    rest -= {"iam:CreateServiceLinkedRole", "iam:PassRole"}
    if boundary:
        rest -= _BOUNDED | {"iam:DeleteRolePermissionsBoundary"}
        yield _allow(_BOUNDED, ours, {"iam:PermissionsBoundary": boundary})
    yield _allow(rest, [ours, f"arn:*:iam::*:policy/{name}-*"])
    services = sorted({each["Principal"]["Service"] for each in trusts})
    yield _allow({"iam:PassRole"}, ours, {"iam:PassedToService": services})
    yield _allow({"iam:CreateServiceLinkedRole"}, "arn:*:iam::*:role/aws-service-role/*")


def _allow(actions: Iterable[str], resource: Any, equals: Json | None = None) -> Json:
    statement = {"Effect": "Allow", "Action": sorted(actions), "Resource": resource}
    return statement | ({"Condition": {"StringEquals": equals}} if equals else {})


def size_of(value: Any) -> int:
    """Count characters as IAM does."""
    return len(json.dumps(value, separators=(",", ":")))


def page() -> str:
    """Write the page of the actions by type; what is above the rows is written by hand."""
    above, rule, _ = (ROOT / PAGE).read_text().partition("|---|---|\n")
    rows = (f"| `{kind}` | {', '.join(each)} |\n" for kind, each in known_actions().items())
    return above + rule + "".join(rows)


def synthesized() -> list[Json]:
    """Read the resources of all stacks of cdk.out, which may have templates of earlier ones too."""
    artifacts = json.loads((_FOLDER / "manifest.json").read_text())["artifacts"].values()
    files = [each["properties"]["templateFile"] for each in artifacts if "stack" in each["type"]]
    templates = [json.loads((_FOLDER / file).read_text()) for file in files]
    return [each for template in templates for each in template["Resources"].values()]


def main() -> None:
    """Write the policies, or say in one sentence why not."""
    try:
        policies = execution_policies(synthesized())
    except ValueError as error:
        sys.exit(str(error))
    for old in _FOLDER.glob("execution-policy-*.json"):
        old.unlink()
    for number, policy in enumerate(policies, start=1):
        file = _FOLDER / f"execution-policy-{number}.json"
        file.write_text(json.dumps(policy, indent=1) + "\n")
        print(f"{file.relative_to(ROOT)}   {size_of(policy):,} of {LIMIT:,} characters")


if __name__ == "__main__":
    main()
