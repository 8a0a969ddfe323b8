"""Nodes of a cluster that failed a check and are or will be replaced; used by `aggregate`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.cluster.events import ClusterPhase, NodeReplaced, NodeReplacementBegan
from stationmaster.domain.cluster.standing import Standing
from stationmaster.domain.event import shared
from stationmaster.domain.outside import MAX_KEPT_BYTES, clipped

# In one pass. All nodes are paid for while one is replaced, which takes 5 to 15 minutes. Machines
# that are bad from the start are rare, so that two in a cluster are bad luck; where a third one is
# found, the reason is more likely what all have in common: image, settings, network.
MAX_REPLACED: Final = 2


class Replacement(BaseModel):
    """A node that failed a check; `replaced_at` is None until another one is there."""

    model_config = ConfigDict(frozen=True)

    node: str
    instance_id: str
    check: str
    reason: str
    pass_number: int
    began_at: datetime
    replaced_at: datetime | None = None


def of_pass(known: Sequence[Replacement], pass_number: int) -> list[Replacement]:
    """Return the replacements of one execution, the oldest first."""
    return [each for each in known if each.pass_number == pass_number]


def replaced(known: Sequence[Replacement], event: NodeReplaced) -> list[Replacement]:
    """Return the replacements once another node is there."""
    return [
        each.model_copy(update={"replaced_at": event.at})
        if each.instance_id == event.instance_id and each.replaced_at is None
        else each
        for each in known
    ]


def replacement_began(
    standing: Standing,
    event: NodeReplacementBegan,
    known: Sequence[Replacement],
    *,
    pass_number: int,
) -> list[Replacement]:
    """Return the replacements with a new one."""
    standing.refuse_going(f"get another node for {event.node}")
    if standing.phase is not ClusterPhase.VALIDATING:
        raise standing.cannot(f"get another node for {event.node}")
    if len(of_pass(known, pass_number)) >= MAX_REPLACED:
        raise standing.cannot(f"get another node for {event.node}: {MAX_REPLACED} were replaced")
    kept = event.model_copy(update={"reason": clipped(event.reason, MAX_KEPT_BYTES)})
    begun = shared(kept, Replacement)
    return [*known, Replacement(**begun, pass_number=pass_number, began_at=event.at)]
