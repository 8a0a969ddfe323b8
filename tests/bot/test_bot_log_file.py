"""The log of a run as a file in its thread, asked for by `/train logs` and made by the notifier."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest
from bot_world import REGION, Clock
from recording_slack import Refusal

from bot import uploads
from bot.stream import read_batch
from stationmaster.domain.bus import LogTail
from stationmaster.domain.run import events as ev
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.artifacts_world import BUCKET, save_run

LINES = [
    *(f"line {number} <&>" for number in range(40)),
    '{"stationmaster":1,"kind":"progress","step":40,"total_steps":60,"loss_nats":6.31}',
]


@pytest.fixture
def services(settings: Settings, clock: Clock) -> Services:
    return Services(settings.model_copy(update={"artifacts_bucket": BUCKET}), now=clock.now)


@pytest.fixture
def ask(person, story, services, stream, notifier, clock) -> Any:
    """Posts what is due, types the command, and then posts what the command has left to do."""
    story.begin()
    tail = LogTail(pod="worker-0", at=clock.now(), lines=LINES)
    services.runs.save_log_tails(story.run_id, [tail])

    def typed() -> str:
        notifier.notify(read_batch(stream.next_batch()))
        clock.advance(10)
        answer = json.dumps(person.type("logs")["answer"]["blocks"])
        notifier.notify(read_batch(stream.next_batch()))
        return answer

    return typed


def test_log_without_room_in_the_answer_is_uploaded_once_into_the_thread(ask, slack):
    answer = ask()
    ask()

    assert "more lines follow as a file in the run's thread" in answer
    assert len(slack.uploads) == 1
    text = slack.uploads[0].decode()
    assert "\n".join(["==== worker-0 ====", *LINES[:40], "step 40 of 60, loss 6.310\n"]) in text
    (completed,) = slack.of("files.completeUploadExternal")
    assert completed.arguments["thread_ts"] == slack.cards[0].ts


def test_log_with_room_in_the_answer_leaves_no_file(ask, story, services, slack, clock):
    clock.advance(1)
    tail = LogTail(pod="worker-0", at=clock.now(), lines=LINES[:20])
    services.runs.save_log_tails(story.run_id, [tail])

    assert "as a file" not in ask()
    assert slack.uploads == []


def test_saved_log_is_uploaded_to_its_end_and_says_what_is_left_out(ask, story, slack, monkeypatch):
    s3 = boto3.client("s3", REGION)
    s3.create_bucket(Bucket=BUCKET)
    files = {"logs/a.log": "\n".join(LINES * 9).encode(), "logs/b.log": b"one line\n"}
    made = save_run(s3, story.run_id, files)
    story.happen(ev.ResultsSaved, num_files=2, **made.recorded)
    monkeypatch.setattr(uploads, "MAX_BYTES", 400)

    answer = ask()

    assert "they follow as a file in the run's thread" in answer
    text = slack.uploads[0].decode()
    assert "==== a ====\n[the first 4.66 KiB of 4.85 KiB are left out; see logs/" in text
    assert "line 39 <&>\nstep 40 of 60, loss 6.310\n\n==== b ====\none line\n" in text


def test_refused_upload_is_named_in_the_thread_and_tried_when_asked_again(ask, slack):
    slack.refuse("files.getUploadURLExternal", Refusal(error="missing_scope"))

    ask()
    said = slack.thread[-1].seen
    ask()

    assert "tiny-llama-0123abcd` is not uploaded" in said
    assert "Slack answers missing_scope" in said
    assert len(slack.uploads) == 1


def test_file_waits_for_the_budget_of_posts(ask, story, services, slack, stream, notifier, clock):
    take = services.deliveries.take_post_token
    services.deliveries.take_post_token = lambda *_, **__: 60.0

    ask()
    services.deliveries.take_post_token = take
    waited = not slack.uploads
    notifier.notify(read_batch(stream.next_batch()))

    assert waited
    assert len(slack.uploads) == 1
