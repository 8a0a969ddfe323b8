"""What local mode hears of the table's stream."""

from __future__ import annotations

import json

from stationmaster.aws import table
from stationmaster.domain.aggregates import RUN
from stationmaster.domain.run import events as ev
from stationmaster.local.stream_events import StreamEvents
from tests.support.factories import RUN_ID, START


def record(key: table.Key, body: str) -> dict[str, object]:
    return {"dynamodb": {"Keys": key.attributes, "NewImage": {"body": {"S": body}}}}


def test_event_that_is_delivered_twice_is_heard_once_and_other_items_are_not():
    stop = ev.StopRequested(event_id="e-1", run_id=RUN_ID, at=START, user_id="U1")
    event = record(table.event(RUN.key_prefix, RUN_ID, stop.event_id), stop.model_dump_json())
    state = record(table.state(RUN.key_prefix, RUN_ID), "{}")
    token = record(table.task_token(RUN.key_prefix, RUN_ID, "job"), "{}")
    heard: list[object] = []
    events = StreamEvents()
    events.listeners.append(heard.append)

    for records in ([state, event, token], [event], []):
        events.delivered(json.dumps({"Records": records}).encode())
    events.delivered(b'{"detail-type": "Scheduled Event"}')

    assert heard == [stop]
