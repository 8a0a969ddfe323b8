"""Resource Groups Tagging API: clusters and file systems of the endpoint's own services are found
by tag.

moto 5.2.5 asks its own back ends only; EKS takes no part in it, and FSx is served by this
endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moto.resourcegroupstaggingapi import models

from stationmaster.local.aws.emulation import running

_iter_backends = models.iter_taggable_backends


def _backends(account_id: str, region_name: str) -> Iterator[Any]:
    yield from _iter_backends(account_id, region_name)
    emulation = running()
    if emulation is not None:
        yield from emulation.identities.account.sources


def apply() -> None:
    """Extend the list of back ends that are asked."""
    models.iter_taggable_backends = _backends
