"""The loops of the state machines: the states that begin them, left out or looked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def without_beginnings(definition: dict[str, Any]) -> dict[str, Any]:
    """The machine as if each loop began with its step: nothing else is a Pass state."""
    begun = {
        name: state["Next"]
        for scope in scopes(definition)
        for name, state in scope["States"].items()
        if state["Type"] == "Pass"
    }
    stripped = _stripped(definition, begun)
    assert isinstance(stripped, dict)
    return stripped


def scopes(machine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The machine and every branch and item processor in it: each is a small machine itself."""
    yield machine
    for state in machine["States"].values():
        for inner in [*state.get("Branches", []), *filter(None, [state.get("ItemProcessor")])]:
            yield from scopes(inner)


def _stripped(node: Any, begun: dict[str, str]) -> Any:
    if isinstance(node, list):
        return [_stripped(each, begun) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: begun.get(value, value)
        if key in ("StartAt", "Next", "Default") and isinstance(value, str)
        else _stripped(value, begun)
        for key, value in node.items()
        if key not in begun
    }
