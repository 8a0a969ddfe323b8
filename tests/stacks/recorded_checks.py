"""What the roles have asked IAM in local runs: `python tests/stacks/recorded_checks.py DIR...`

Local mode leaves its checks in `asked.jsonl` of its state directory when it stops. This collects
the files below the given folders, makes ids and names of runs alike, and adds what is new to
`tests/stacks/recorded_checks.json`, which `test_grants_are_needed` reads.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from stationmaster.local.aws import Deployment
from stationmaster.local.aws.iam.policies import Check
from stationmaster.local.product import ROLES

RECORDED = Path(__file__).with_suffix(".json")
# The account that recorded checks are of, once their ids are alike.
MADE = Deployment(
    role_arns={name: f"arn:aws:iam::123456789012:role/{name}" for name in ROLES.values()},
    secret_arns={
        name: f"arn:aws:secretsmanager:us-west-2:123456789012:secret:{name}"
        for name in ("slack", "huggingface", "relay")
    },
    vpc_id="vpc-0",
)
_ALIKE = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "0"),
    (re.compile(r"\b(stationmaster-)?[a-z0-9-]+-[0-9a-f]{8}\b"), r"\1run-0"),
    (re.compile(r"-[0-9a-f]{10,17}\b"), "-0"),
    (re.compile(r"secret:(slack|huggingface|relay)-\w+"), r"secret:\1"),
    (re.compile(r"(:::[^/]+/runs/[^/]+/).+"), r"\1file"),
    (re.compile(r"(:::[^/]+/relayed/)[^/]+/.+"), r"\1run-0-relay-0-0/pod.log"),
    (re.compile(r"-relay-[0-9a-z]+-[0-9a-z]+\b"), "-relay-0-0"),
    (re.compile(r"(:::[^/]+/)(?!runs/|relayed/).+"), r"\1file"),
)


def recorded() -> dict[str, list[Check]]:
    """The recorded checks of each role."""
    found: dict[str, list[Check]] = {}
    for name, action, resource, context, is_missing in json.loads(RECORDED.read_text()):
        found.setdefault(name, []).append(Check(action, resource, context, is_missing))
    return found


def alike(line: str) -> list[Any]:
    """A line of `asked.jsonl` without what differs from run to run."""

    def plain(text: str) -> str:
        for pattern, replacement in _ALIKE:
            text = pattern.sub(replacement, text)
        return text

    name, action, resource, context, is_missing = json.loads(line)
    return [
        name,
        action,
        plain(resource),
        {key: plain(value) for key, value in context.items()},
        is_missing,
    ]


def main() -> None:
    """Add the checks below the given folders to the file."""
    rows = json.loads(RECORDED.read_text()) if RECORDED.exists() else []
    lines = {json.dumps(row, sort_keys=True) for row in rows}
    for folder in map(Path, sys.argv[1:]):
        for path in folder.rglob("asked.jsonl"):
            lines |= {
                json.dumps(alike(line), sort_keys=True) for line in path.read_text().splitlines()
            }
    RECORDED.write_text("[\n" + ",\n".join(sorted(lines)) + "\n]\n")


if __name__ == "__main__":
    main()
