"""The IAM actions of resource types' handlers: `.venv/bin/python tests/stacks/handler_schemas.py`

It reads CloudFormation's resource schemas, which cfn-lint carries, and writes the handlers' part of
`stacks/handler_actions.json`, with the types of cdk.out that the file does not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from cfnlint.schema import PROVIDER_SCHEMA_MANAGER as SCHEMAS

from stacks import rights


def actions_of(kinds: Iterable[str]) -> dict[str, list[str]]:
    """What the handlers call, which is nothing of a type without handlers."""
    found = {}
    for kind in sorted(kinds):
        schema = SCHEMAS.get_resource_schema(region="us-east-1", resource_type=kind).schema
        verbs = [each for verb, each in schema.get("handlers", {}).items() if verb != "list"]
        named = {each.partition(":")[::2] for verb in verbs for each in verb["permissions"]}
        # Some schemas spell an action in small letters, or name what is none: s3:REST.PUT.OBJECT.
        actions = {(a.lower(), b[0].upper() + b[1:]) for a, b in named if re.fullmatch(r"\w+", b)}
        found[kind] = sorted(map(":".join, actions))
    return found


if __name__ == "__main__":
    table = json.loads(rights.TABLE.read_text())
    new = {each["Type"] for each in rights.synthesized()}
    table["handlers"] = actions_of(new | table["handlers"].keys())
    rights.TABLE.write_text(json.dumps(table, indent=1) + "\n")
