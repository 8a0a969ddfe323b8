"""python tests/stacks/syntheses.py FOLDER: all that the tests of this folder read of the CDK.

One process makes it, once for all workers: most of a synthesis is what Node has to load.

    main/            the assembly of app.py as it is
    existing/        the same with the context EXISTING
    refused.txt      why app.py ended with a queue, open to plain HTTP, in place of our stacks
    networks.json    the resources of a network alone, by its zones' letters
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
    "more_images": ["torchtitan", "nemo", "cpu", "nemo", "megatron"],
}
ZONES: Final = ("bd", "abc", "abcdef")


def main(folder: Path) -> None:
    """Write everything into a folder that exists."""
    use_packaged_node()
    from stacks.generate import definitions

    _run_app(folder / "main", {})
    _run_app(folder / "existing", {"stationmaster": EXISTING})
    (folder / "refused.txt").write_text(_refusal(folder / "refused"))
    networks = {zones: _network(zones) for zones in ZONES}
    (folder / "networks.json").write_text(json.dumps(networks))
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


def _refusal(folder: Path) -> str:
    """What the CDK says and reports; nothing where it does not refuse."""
    import aws_cdk as cdk
    from aws_cdk import aws_sqs as sqs

    from stacks import application

    def add_queue(app: cdk.App, _config: object) -> None:
        sqs.Queue(cdk.Stack(app, "Careless"), "Queue")

    with mock.patch.object(application, "add_stacks", add_queue):
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
    template = app.synth().get_stack_artifact(stack.artifact_id).template
    resources: dict[str, Any] = template["Resources"]
    return resources


if __name__ == "__main__":
    main(Path(sys.argv[1]))
