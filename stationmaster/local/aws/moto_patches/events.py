"""EventBridge: rules reach functions, in the background.

moto 5.2.5 raises NotImplementedError out of PutEvents when a rule has such a target. Events are
delivered as the service words them, to functions only.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from moto.events.models import EventPattern, Rule

from stationmaster.local.aws import emulation
from stationmaster.local.aws.event_delivery import Delivery

_FIELDS = (
    "version",
    "id",
    "detail-type",
    "source",
    "account",
    "time",
    "region",
    "resources",
    "detail",
)


def _iso(moment: Any) -> str:
    if isinstance(moment, (int, float)):
        moment = datetime.fromtimestamp(float(moment), UTC)
    if isinstance(moment, datetime):
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(moment)


def _send(self: Any, original_event: Any, transform_input: bool = True) -> None:
    if self.state != "ENABLED" or self.event_pattern is None:
        return
    pattern: EventPattern = self.event_pattern
    if not pattern.get_pattern() or not pattern.matches_event(original_event):
        return
    event = {name: original_event[name] for name in _FIELDS}
    event["time"] = _iso(event["time"])
    for target in self.targets:
        emulation.current().delivery.submit(
            Delivery(
                rule=self.name,
                target_arn=target["Arn"],
                payload=json.dumps(event, separators=(",", ":")).encode(),
                event_id=event["id"],
            )
        )


def apply() -> None:
    """Replace how a rule reaches its targets."""
    Rule.send_to_targets = _send
