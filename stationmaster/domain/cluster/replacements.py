"""Nodes of a cluster that failed a check and are or will be replaced. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from stationmaster.domain.frozen import Frozen

# In one pass. All nodes are paid for while one is replaced, which takes 5 to 15 minutes. Machines
# that are bad from the start are rare, so that two in a cluster are bad luck; where a third one is
# found, the reason is more likely what all have in common: image, settings, network.
MAX_REPLACED: Final = 2


class Replacement(Frozen):
    """A node that failed a check; `replaced_at` is None until another one is there."""

    node: str
    instance_id: str
    check: str
    reason: str
    pass_number: int
    began_at: datetime
    replaced_at: datetime | None = None
