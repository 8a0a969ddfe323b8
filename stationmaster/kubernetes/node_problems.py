"""What the conditions of a node say against it, but for not being ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def node_problems(status: Mapping[str, Any]) -> tuple[str, ...]:
    """List each condition by which something is wrong, with Kubernetes' own reason."""
    return tuple(
        f"{each['type']} is {each.get('status')} ({each.get('reason') or 'no reason given'})"
        for each in status.get("conditions") or []
        if each["type"] != "Ready" and each.get("status") != _well(each["type"])
    )


def _well(condition: str) -> str:
    """Return the status of a condition where all is well.

    Kubernetes' own name a problem, as MemoryPressure does; those of EKS' node monitoring agent name
    what is to be ready, as AcceleratedHardwareReady does.
    """
    return "True" if condition.endswith("Ready") else "False"
