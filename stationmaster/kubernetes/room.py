"""Which nodes of a shared cluster have room for training pods. Pure.

These are the scheduler's own rules, as far as the product's pods meet them: a node is ready, nobody
has cordoned it, its taints are tolerated, and what its pods request leaves enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal

from stationmaster.kubernetes.views import NodeView, PodLoad

Amounts = Mapping[str, Decimal]


def amounts_of(requests: Mapping[str, str]) -> dict[str, Decimal]:
    """Read a pod's requests as numbers: CPUs, bytes, devices."""
    from kubernetes.utils.quantity import parse_quantity

    return {name: parse_quantity(amount) for name, amount in requests.items()}


def free_amounts(node: NodeView, loads: Iterable[PodLoad]) -> dict[str, Decimal]:
    """Compute what the node can still give to pods, by resource."""
    free = {name: node.amount(name) for name in node.allocatable}
    for load in loads:
        if load.node == node.name:
            for name, amount in load.requests.items():
                free[name] = free.get(name, Decimal(0)) - amount
    return free


def why_not(
    node: NodeView, loads: Sequence[PodLoad], asked: Amounts, *, tolerated: Collection[str]
) -> str:
    """Say why a pod that asks for `asked` cannot go to the node; empty where it can."""
    if not node.ready:
        return "is not ready"
    if not node.schedulable:
        return "is cordoned (kubectl uncordon)"
    if node.unfit:
        return node.unfit
    taint = next((key for key in node.taints if key not in tolerated), None)
    if taint is not None:
        return f"has the taint {taint}, which training pods do not tolerate"
    free = free_amounts(node, loads)
    for name, amount in asked.items():
        if node.amount(name) < amount:
            return f"has {shown(name, node.amount(name))} for pods, {shown(name, amount)} asked for"
        if free.get(name, Decimal(0)) < amount:
            left = max(free.get(name, Decimal(0)), Decimal(0))
            return f"has {shown(name, left)} free, {shown(name, amount)} asked for"
    return ""


def shown(resource: str, amount: Decimal) -> str:
    """Write an amount as people read it."""
    if resource == "memory":
        return f"{float(amount) / (1 << 30):.0f} GiB of memory"
    if resource == "cpu":
        return f"{float(amount):g} CPUs"
    return f"{int(amount)} {resource}"
