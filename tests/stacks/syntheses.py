"""python tests/stacks/syntheses.py FOLDER: all that the tests of this folder read of the CDK.

One process makes it, once for all workers: most of a synthesis is what Node has to load.

    main/            the assembly of app.py as it is
    existing/        the same with the context EXISTING
    private/         the same with the context PRIVATE
    networks/        a network alone: ZONES.template.json, by its zones' letters
    refused.json     why app.py ended with a stack of REFUSED in place of ours, by its name
    generated.json   the text of each committed file that `stacks.generate` writes, by its path
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from unittest import mock

from stacks.node import use_packaged_node

ROOT: Final = Path(__file__).parents[2]
EXISTING: Final[Mapping[str, Any]] = {
    "vpc_id": "vpc-0123456789abcdef0",
    "subnet_ids": ["subnet-0123456789abcdef0", "subnet-0a1b2c3d"],
    "kubectl_role_arns": ["arn:aws:iam::123456789012:role/team/researchers"],
    "api_cidrs": ["203.0.113.0/24"],
    "gpu_metrics": True,
    "node_repair": True,
    "more_images": ["torchtitan", "nemo", "cpu", "nemo", "megatron", "nemo2"],
}
PRIVATE: Final[Mapping[str, Any]] = {
    "public_api": False,
    "zones": [f"us-west-2{letter}" for letter in "abcd"],
    "interface_endpoints": ["ecr.api", "ecr.dkr", "sts"],
    "alarm_emails": ["ops@example.com"],
    "dataset_buckets": ["research-data"],
    "linked_buckets": ["research-data"],
    "dataset_key_arns": ["arn:aws:kms:us-west-2:123456789012:key/0a1b2c3d"],
    "eks_clusters": ["team-gpu"],
    "trace_functions": False,
    "permissions_boundary": "arn:aws:iam::123456789012:policy/limits/workloads",
    "role_path": "/teams/ml/",
    "tags": ["CostCenter=42", "Owner=ml team=a"],
}
VARIANTS: Final = ("main", "existing", "private", "networks")
ZONES: Final = ("bd", "abc", "abcdef")


def main(folder: Path) -> None:
    """Write everything into a folder that exists."""
    use_packaged_node()
    from stacks.generate import definitions

    _run_app(folder / "main", {})
    _run_app(folder / "existing", {"stationmaster": EXISTING})
    _run_app(folder / "private", {"stationmaster": PRIVATE})
    (folder / "networks").mkdir()
    for zones in ZONES:
        (folder / "networks" / f"{zones}.template.json").write_text(json.dumps(_network(zones)))
    refused = {name: _refusal(folder / "refused", name) for name in ("queue", "group")}
    (folder / "refused.json").write_text(json.dumps(refused))
    (folder / "generated.json").write_text(json.dumps(definitions()))


def _run_app(folder: Path, context: Mapping[str, Any]) -> None:
    """Run app.py with more context, as from `cdk --context`, and its assembly in `folder`."""
    import aws_cdk as cdk

    usual = cdk.App

    def app(**options: Any) -> cdk.App:
        options |= {"outdir": str(folder), "context": {**options["context"], **context}}
        return usual(**options)

    with mock.patch.object(cdk, "App", app):
        runpy.run_path(str(ROOT / "app.py"))


def _refusal(folder: Path, careless: str) -> str:
    """What the CDK says and reports; nothing where it does not refuse."""
    import aws_cdk as cdk
    from aws_cdk import aws_ec2 as ec2
    from aws_cdk import aws_sqs as sqs

    from stacks import application

    def add_one(app: cdk.App, _config: object) -> None:
        stack = cdk.Stack(app, "Careless")
        if careless == "queue":  # open to plain HTTP
            sqs.Queue(stack, "Queue")
        else:  # EC2 takes no apostrophe
            ec2.CfnSecurityGroup(
                stack, "Group", group_description="it's closed", vpc_id=EXISTING["vpc_id"]
            )

    with mock.patch.object(application, "add_stacks", add_one):
        try:
            _run_app(folder, {})
        except RuntimeError as error:
            return f"{error}\n{(folder / 'validation-report.json').read_text()}"
    return ""


def _network(zones: str) -> dict[str, Any]:
    import aws_cdk as cdk

    from stacks.config import read_config
    from stacks.network import NetworkStack

    context = {
        "zones": [f"us-west-2{letter}" for letter in zones],
        "interface_endpoints": ["ecr.api", "sts"],
    }
    app = cdk.App()
    stack = NetworkStack(app, "network", config=read_config(context))
    template: dict[str, Any] = app.synth().get_stack_artifact(stack.artifact_id).template
    return template


if __name__ == "__main__":
    main(Path(sys.argv[1]))
