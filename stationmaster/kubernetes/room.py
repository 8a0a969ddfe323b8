"""What pods hold, and which nodes of a shared cluster have room for training pods. Pure.

These are the scheduler's own rules, as far as the product's pods meet them: a node is ready, nobody
has cordoned it, its taints are tolerated, and what its pods request leaves enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal

from stationmaster.domain.frozen import Frozen
from stationmaster.domain.names import LABEL_PLACED_FOR
from stationmaster.kubernetes.views import Json, NodeView

Amounts = Mapping[str, Decimal]


class PodLoad(Frozen):
    """What one pod holds of its node, in CPUs, bytes and devices, until it has ended."""

    namespace: str
    placed_for: str = ""
    """The guest that it is of, in a namespace that others use as well."""
    node: str
    requests: dict[str, Decimal] = {}


def parse_load(item: Json) -> PodLoad | None:
    """Parse a Pod; None where it holds nothing: it has ended, or is on no node yet."""
    spec, phase = item.get("spec") or {}, (item.get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed") or not spec.get("nodeName"):
        return None
    first = [_requests(container) for container in spec.get("initContainers") or []]
    beside = [
        amounts
        for amounts, container in zip(first, spec.get("initContainers") or [], strict=True)
        if container.get("restartPolicy") == "Always"  # it runs on beside the others
    ]
    held = [*(_requests(container) for container in spec.get("containers") or []), *beside]
    names = {name for amounts in [*first, *held] for name in amounts}
    zero = Decimal(0)
    return PodLoad(
        namespace=item["metadata"].get("namespace", ""),
        placed_for=(item["metadata"].get("labels") or {}).get(LABEL_PLACED_FOR, ""),
        node=spec["nodeName"],
        requests={
            name: max(
                sum((amounts.get(name, zero) for amounts in held), zero),
                *(amounts.get(name, zero) for amounts in first),
                zero,
            )
            for name in names
        },
    )


def _requests(container: Json) -> dict[str, Decimal]:
    from kubernetes.utils.quantity import parse_quantity

    resources = container.get("resources") or {}
    # A limit without a request is a request.
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(amount) for name, amount in asked.items()}


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
