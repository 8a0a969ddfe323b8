"""The synthesized application, made once by `app.py` itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from infra_templates import ROOT, Resource, Template, of_type, reference, templates_of


@pytest.fixture(scope="session")
def syntheses(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The folder of `syntheses.py`. A synthesis fails on any finding of the AwsSolutions rules."""
    return once("syntheses", _synthesize)


def _synthesize(folder: Path) -> None:
    finished = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "syntheses.py"), str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-6000:]


@pytest.fixture(scope="session")
def assembly(syntheses: Path) -> Path:
    """The folder with the templates of app.py."""
    return syntheses / "main"


@pytest.fixture(scope="session")
def templates(assembly: Path) -> dict[str, Template]:
    """Templates by the name of their stack, without the deployment's prefix."""
    return templates_of(assembly)


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
            for kind in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy")  # what does not fit into it
            for policy in of_type(resources, kind).values()
            if role in [reference(each) for each in policy["Properties"]["Roles"]]
            for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        ]
    return found
