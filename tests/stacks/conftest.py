"""The synthesized application, made once: by `app.py` itself, as `make synth` runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from infra_templates import ROOT, Resource, Template, of_type, reference, synthesis_environment


@pytest.fixture(scope="session")
def assembly(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The folder with the templates. Synthesis fails on any finding of the AwsSolutions rules."""
    return once("synthesis", _synthesize) / "cdk.out"


def _synthesize(folder: Path) -> None:
    finished = subprocess.run(
        [sys.executable, str(ROOT / "app.py")],
        cwd=folder,
        env=synthesis_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-6000:]


@pytest.fixture(scope="session")
def templates(assembly: Path) -> dict[str, Template]:
    """Templates by the name of their stack, without the deployment's prefix."""
    return {
        path.name.removeprefix("stationmaster-").removesuffix(".template.json"): json.loads(
            path.read_text()
        )
        for path in assembly.glob("*.template.json")
    }


@pytest.fixture(scope="session")
def resources(templates: dict[str, Template]) -> dict[str, Resource]:
    """Every resource of every stack, as "stack/logical id"."""
    return {
        f"{stack}/{logical_id}": resource
        for stack, template in templates.items()
        for logical_id, resource in template["Resources"].items()
    }


@pytest.fixture(scope="session")
def functions(resources: dict[str, Resource]) -> dict[str, Resource]:
    """The deployed functions' resources, by registry name."""
    return {
        resource["Properties"]["FunctionName"].removeprefix("stationmaster-"): resource
        for resource in of_type(resources, "AWS::Lambda::Function").values()
    }


@pytest.fixture(scope="session")
def statements(
    resources: dict[str, Resource], functions: dict[str, Resource]
) -> dict[str, list[dict[str, Any]]]:
    """The policy statements of each function's role, by registry name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, function in functions.items():
        role = reference(function["Properties"]["Role"])
        found[name] = [
            statement
            for policy in of_type(resources, "AWS::IAM::Policy").values()
            if role in [reference(each) for each in policy["Properties"]["Roles"]]
            for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        ]
    return found
