"""The product's outbox against the local workspace: finding its own messages, losing channels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from slack_fixtures import HERE, say, web_client

from bot.blocks.elements import Content, section
from bot.outbox import Mark, Outbox
from stationmaster.local.slack.server import LocalSlack

RUN = "tiny-llama-0123abcd"


@pytest.fixture
def outbox(slack: LocalSlack) -> Outbox:
    client = web_client(slack)
    return Outbox(client, reload_token=lambda team: "xoxb-rotated", sleep=lambda seconds: None)


def content(text: str) -> Content:
    return Content(text=text, blocks=[section(text)])


def test_find_gives_the_keys_of_the_runs_own_messages(outbox: Outbox) -> None:
    began = datetime.now(UTC)
    card = outbox.post(content("card"), channel=HERE, mark=Mark(RUN, ["card"]))
    outbox.post(content("other"), channel=HERE, mark=Mark("another-run", ["card", "x"]))
    line = outbox.post(
        content("line"), channel=HERE, thread_ts=card, mark=Mark(RUN, ["key-1", "key-2"])
    )

    in_channel = outbox.find(RUN, channel=HERE, since=began)
    in_thread = outbox.find(RUN, channel=HERE, since=began, thread_ts=card)

    assert in_channel == {"card": card}
    assert in_thread == {"card": card, "key-1": line, "key-2": line}


def test_find_sees_an_edited_card_no_deleted_one_and_none_from_before(outbox: Outbox) -> None:
    began = datetime.now(UTC)
    kept, gone = (
        outbox.post(content("card"), channel=HERE, mark=Mark(run, ["card"])) for run in ("k", "g")
    )
    outbox.update(content("later"), channel=HERE, ts=kept)
    outbox.delete(channel=HERE, ts=gone)

    assert outbox.find("k", channel=HERE, since=began) == {"card": kept}
    assert outbox.find("g", channel=HERE, since=began) == {}
    assert outbox.find("k", channel=HERE, since=began + timedelta(hours=1)) == {}


def test_find_reads_on_behind_a_full_page(slack: LocalSlack, outbox: Outbox) -> None:
    began = datetime.now(UTC)
    ts = outbox.post(content("card"), channel=HERE, mark=Mark("deep", ["card"]))
    for _ in range(201):
        say(slack, "chatter")

    assert outbox.find("deep", channel=HERE, since=began) == {"card": ts}
