"""Reading CloudFormation templates: what the tests of this folder share besides fixtures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
Resource = dict[str, Any]
Template = dict[str, Any]


def templates_of(assembly: Path) -> dict[str, Template]:
    """Templates by the name of their stack, without the deployment's prefix."""
    return {
        path.name.removeprefix("stationmaster-").removesuffix(".template.json"): json.loads(
            path.read_text()
        )
        for path in assembly.glob("*.template.json")
    }


def of_type(resources: dict[str, Resource], kind: str) -> dict[str, Resource]:
    """The resources of one CloudFormation type."""
    return {name: each for name, each in resources.items() if each["Type"] == kind}


def as_list(value: Any) -> list[Any]:
    """IAM writes a list of one as the thing itself."""
    return value if isinstance(value, list) else [value]


def reference(value: Any) -> str:
    """The logical id that a Ref or GetAtt points at, or the literal text itself."""
    match value:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), _]}:
            return name
        case {"Fn::ImportValue": str(name)} | {"Fn::GetStackOutput": {"OutputName": str(name)}}:
            return name
        case _:
            return str(value)


def text_of(value: Any) -> str:
    """A CloudFormation value as text, with each reference written as {name}."""
    match value:
        case {"Fn::Join": [str(separator), list(parts)]}:
            return separator.join(text_of(part) for part in parts)
        case {"Fn::Select": [index, inner]}:
            return f"{{{index} of {text_of(inner)}}}"
        case {"Fn::Split": [separator, inner]}:
            return f"{text_of(inner)} at {separator}"
        case dict():
            return "{" + re.sub(r"^AWS::", "", reference(value)) + "}"
        case _:
            return str(value)
