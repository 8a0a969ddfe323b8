"""Kubernetes quantities (`500m`, `2Gi`) as exact numbers, and the resources that a pod asks for.

Used by the scheduler and the node controller. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from stationmaster.domain.quantities import quantity
from stationmaster.local.cluster.api import errors


def parse_quantity(value: str | int | float) -> Fraction:
    """Return the value of a quantity: `1500m` is 3/2, `1Ki` is 1024.

    Raises:
        ApiError: 400 when the text is not a quantity.
    """
    found = quantity(value)
    if found is not None:
        return found
    raise errors.bad_request(
        f'quantity "{value}" is not a number with a suffix such as 500m or 2Gi'
    )


def container_requests(container: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return what one container reserves; a limit without a request is also the request."""
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(amount) for name, amount in merged.items()}


def pod_requests(spec: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return what a pod reserves: the sum of its containers, or its largest init container."""
    total: dict[str, Fraction] = {}
    for container in spec.get("containers") or []:
        for name, amount in container_requests(container).items():
            total[name] = total.get(name, Fraction(0)) + amount
    for container in spec.get("initContainers") or []:
        for name, amount in container_requests(container).items():
            total[name] = max(total.get(name, Fraction(0)), amount)
    return total
