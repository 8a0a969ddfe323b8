"""Keeps what a function cannot read as a dead letter, so that it blocks nothing behind it.

It is kept with the reason (`aws/set_aside_store.py`), logged with a message that an alarm is set
on, and posted by the notifier. `stationmaster redrive` sends it again.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from stationmaster.domain.names import SET_ASIDE
from stationmaster.services import Services

logger = logging.getLogger(__name__)


def set_aside(services: Services, *, function: str, what: str, reason: str, payload: Any) -> None:
    """Keep `payload`, which `function` could not read, once however often it comes.

    Raises:
        TransientError, PermanentError: it cannot be kept. The function fails with it, so that AWS
            delivers its input again and keeps it as a dead letter in the end.
    """
    text = json.dumps(payload, default=str, separators=(",", ":"))
    kept = services.set_aside.put(
        function=function, what=what, reason=reason, payload=text, now=services.now()
    )
    details = {"function": function, "what": what, "reason": reason}
    if kept is None:
        logger.warning("dead letter kept already", extra=details)
    else:
        logger.error(SET_ASIDE, extra={**details, "item_id": kept.item_id})
