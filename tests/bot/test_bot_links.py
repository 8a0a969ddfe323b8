"""The button Links of a saved run: who gets an answer, and what is in it."""

from __future__ import annotations

import json

import pytest
from bot_world import Person, Story
from recording_slack import RecordingSlack
from run_blocks import NOW, buttons
from saved_cards import saved, unsaved

from bot.blocks.card import run_card
from bot.blocks.mrkdwn import link
from bot.blocks.receipt import run_receipt
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.slack.blocks import check_blocks
from tests.support.artifacts_world import save_run

FILES = {
    "checkpoint/step-00000060/weights.pt": b"checkpoint",
    "metrics.jsonl": b"{}\n",
    "model/model.safetensors": b"weights",
}


@pytest.fixture
def value(story: Story, bucket) -> str:
    """What the button of a saved run says."""
    story.begin()
    story.phases(RunPhase.PROVISIONING, RunPhase.VALIDATING, RunPhase.SUBMITTING, RunPhase.RUNNING)
    story.happen(ev.TrainingStarted, total_steps=9)
    story.phases(RunPhase.SAVING)
    saved = save_run(bucket, story.run_id, FILES)
    story.happen(ev.ResultsSaved, num_files=3, **saved.recorded)
    return json.dumps({"run_id": story.run_id})


def test_card_and_receipt_of_a_saved_run_offer_links():
    view = saved(RunPhase.SUCCEEDED)

    for shown in (run_card(view, now=NOW), run_receipt(view, now=NOW)):
        assert "link_results" in buttons(shown)
        check_blocks(shown.blocks)
    assert "link_results" not in buttons(run_card(unsaved(), now=NOW))


def test_answer_is_for_one_person_and_says_how_long_links_are_valid(
    person: Person, slack: RecordingSlack, value: str
):
    person.press("link_results", value, user="U0OTHER")

    (answer,) = slack.responses
    assert answer.arguments["response_type"] == "ephemeral"
    assert answer.arguments["replace_original"] is False
    assert "The links are valid until" in answer.seen
    assert "1 more file; the command on the card brings all of them" in answer.seen
    for path in ("manifest.json", "metrics.jsonl", "model/model.safetensors"):
        assert f"|{path}>" in answer.seen
    assert answer.seen.count("X-Amz-Signature=") == 3
    assert slack.of("chat.postMessage") == []


def test_other_channel_is_answered_as_if_there_were_no_such_run(
    person: Person, slack: RecordingSlack, value: str
):
    person.press("link_results", value, channel="C0OTHER")

    (answer,) = slack.responses
    assert "no run is called" in answer.seen
    assert "X-Amz-Signature" not in answer.seen


def test_link_keeps_its_address_whole():
    address = "http://127.0.0.1:1/b/k?a=1&b=%20"

    assert link(address, "a|b<c") == "<http://127.0.0.1:1/b/k?a=1&amp;b=%20|a/b&lt;c>"
