"""The table's keys: each item has one place, and a stream record says whose item it is."""

import pytest

from stationmaster.aws import table
from stationmaster.aws.table import StateOrEvent

RUN_ID = "tiny-llama-0a1b2c3d"
KEYS = {
    "state": table.state("RUN", RUN_ID),
    "event": table.event("RUN", RUN_ID, "e1"),
    "step": table.event("RUN", RUN_ID, "e1", is_frequent=True),
    "set aside": table.set_aside("e1"),
    "token": table.task_token("RUN", RUN_ID, "job"),
    "log": table.log_tail("RUN", RUN_ID, "pod-0"),
    "cluster": table.state("CLUSTER", RUN_ID),
    "cluster event": table.event("CLUSTER", RUN_ID, "e1"),
    "request": table.earlier_request("words"),
    "delivery": table.delivery(RUN_ID),
    "claim": table.delivery_claim(RUN_ID, "e1"),
    "budget": table.slack_updates(""),
}


def test_no_two_kinds_of_items_share_a_place():
    assert len(set(KEYS.values())) == len(KEYS)


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        *((kind, None) for kind in ("token", "log", "request", "budget", "set aside")),
        ("state", StateOrEvent("RUN", RUN_ID, None)),
        ("event", StateOrEvent("RUN", RUN_ID, "e1")),
        ("step", StateOrEvent("RUN", RUN_ID, "e1")),
        ("cluster", StateOrEvent("CLUSTER", RUN_ID, None)),
        ("cluster event", StateOrEvent("CLUSTER", RUN_ID, "e1")),
        ("delivery", StateOrEvent("DELIVERY", RUN_ID, None)),
        ("claim", StateOrEvent("DELIVERY", RUN_ID, "e1")),
    ],
)
def test_stream_record_names_the_owner_of_a_state_or_event(kind, read):
    assert table.read_key(KEYS[kind].attributes) == read


def test_groups_of_items_hold_the_items_of_their_kind_alone():
    held = {
        name: {
            kind
            for kind, key in KEYS.items()
            if key.partition == group.partition and key.sort.startswith(group.sort)
        }
        for name, group in (
            ("events", table.events("RUN", RUN_ID)),
            ("steps", table.frequent_events("RUN", RUN_ID)),
            ("logs", table.log_tails("RUN", RUN_ID)),
        )
    }

    assert held == {"events": {"event"}, "steps": {"step"}, "logs": {"log"}}
