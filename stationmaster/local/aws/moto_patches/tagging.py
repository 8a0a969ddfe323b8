"""Resource Groups Tagging API: clusters and file systems of the endpoint's own services are found
by tag.

moto 5.2.5 asks its own back ends only; EKS takes no part in it, and FSx is served by this
endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moto.resourcegroupstaggingapi import models

_iter_backends = models.iter_taggable_backends
_sources: list[Any] = []


def add_source(source: Any) -> None:
    """Ask `source` too; it has moto's TaggableResourcesMixin methods."""
    _sources.append(source)


def clear_sources() -> None:
    """Forget the sources of an endpoint that stops."""
    _sources.clear()


def _backends(account_id: str, region_name: str) -> Iterator[Any]:
    yield from _iter_backends(account_id, region_name)
    yield from list(_sources)


def apply() -> None:
    """Extend the list of back ends that are asked."""
    models.iter_taggable_backends = _backends
