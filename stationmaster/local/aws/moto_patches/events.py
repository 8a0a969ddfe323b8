"""EventBridge: rules reach Lambda and Step Functions targets, in the background.

moto 5.2.5 raises NotImplementedError out of PutEvents when a rule has such a target, and hands
other targets an event with a float as its time. Events are delivered as the service words them;
Input, InputPath and InputTransformer of a target are honoured.
"""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

from moto.events.models import EventPattern, Rule
from moto.events.utils import EventTemplateParser

from stationmaster.local.aws import emulation
from stationmaster.local.aws.event_delivery import Delivery, event_payload

_send_to_targets = Rule.send_to_targets
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


def _payload(target: dict[str, Any], event: dict[str, Any]) -> bytes:
    if target.get("Input"):
        return str(target["Input"]).encode()
    if target.get("InputPath"):
        value: Any = event
        for part in str(target["InputPath"]).removeprefix("$").strip(".").split("."):
            value = value[part] if part else value
        return json.dumps(value).encode()
    transformer = target.get("InputTransformer")
    if transformer:
        made = EventTemplateParser.parse(
            input_template=transformer.get("InputTemplate"),
            input_paths_map=transformer.get("InputPathsMap", {}),
            # moto's parser also offers the ingestion time, which targets never get.
            event={"ingestion-time": event["time"], **event},
        )
        return json.dumps(made).encode()
    return event_payload(event)


def _send(self: Any, original_event: Any, transform_input: bool = True) -> None:
    if self.state != "ENABLED" or self.event_pattern is None:
        return
    pattern: EventPattern = self.event_pattern
    if not pattern.get_pattern() or not pattern.matches_event(original_event):
        return
    event = {name: original_event[name] for name in _FIELDS}
    event["time"] = _iso(event["time"])
    others = []
    for target in self.targets:
        service = target["Arn"].split(":")[2]
        if service not in ("lambda", "states"):
            others.append(target)
            continue
        emulation.current().delivery.submit(
            Delivery(
                rule=self.name,
                target_arn=target["Arn"],
                payload=_payload(target, event),
                event_id=event["id"],
                dead_letter_arn=(target.get("DeadLetterConfig") or {}).get("Arn", ""),
            )
        )
    if others:
        rest = copy.copy(self)
        rest.targets = others
        _send_to_targets(rest, original_event, transform_input)


def apply() -> None:
    """Replace how a rule reaches its targets."""
    Rule.send_to_targets = _send
