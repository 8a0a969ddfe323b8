"""The notifier where Slack takes no posts: lost channels, rotated tokens, crashes half way."""

from __future__ import annotations

import json

import boto3
import pytest
from bot_world import CHANNEL, REGION, SIGNING_SECRET, Killed, Story, new_notifier, tell
from recording_slack import Refusal

from bot.stream import read_batch
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.errors import TransientError
from stationmaster.domain.run import events as ev

DIRECT = "D0OPERATOR"


def end(story: Story) -> None:
    story.phases(ev.RunPhase.FAILED, reason="out of memory")
    story.tear_down()
    story.happen(cl.TeardownCompleted, cost_usd=0.42)


def texts(calls: list) -> str:
    return "\n".join(call.seen for call in calls)


def test_requester_who_cannot_be_reached_either_holds_up_nobody(
    tells, services, story, slack, clock, caplog
):
    story.begin()
    other = Story(services, clock, run_id="tiny-llama-ffffffff")
    other.begin()
    tells()
    slack.lost |= {CHANNEL: "is_archived", DIRECT: "messages_tab_disabled"}
    for phase in (ev.RunPhase.PROVISIONING, ev.RunPhase.VALIDATING):
        story.phases(phase)
        tells()
    slack.lost.pop(CHANNEL)

    other.phases(ev.RunPhase.PROVISIONING)
    tells()

    assert "Provisioning" in slack.of("chat.update")[-1].seen
    assert [record.levelname for record in caplog.records if "nobody" in record.message]
    assert slack.attempts.count("conversations.open") == 1
    assert services.runs.load(story.run_id).phase is ev.RunPhase.VALIDATING


@pytest.mark.parametrize("code", ["invalid_auth", "token_revoked", "account_inactive"])
def test_refused_token_keeps_the_batch_until_the_secret_has_a_new_one(
    notifier, stream, story, slack, code
):
    story.begin()
    batch = read_batch(stream.next_batch())
    slack.refuse("chat.postMessage", *[Refusal(error=code)] * 2)
    with pytest.raises(TransientError, match=code):
        notifier.notify(batch)
    boto3.client("secretsmanager", REGION).put_secret_value(
        SecretId="slack",
        SecretString=json.dumps({"bot_token": "xoxb-new", "signing_secret": SIGNING_SECRET}),
    )

    notifier.notify(batch)

    assert [card.token for card in slack.cards] == ["xoxb-new"]


@pytest.mark.parametrize("dies_before", ["post", "confirm"])
def test_end_is_posted_once_after_a_kill_on_its_way(
    tells, stream, story, services, slack, clock, dying, dies_before
):
    story.reach_running()
    tells()
    end(story)
    batch = read_batch(stream.next_batch())
    if dies_before == "post":
        slack.refuse("chat.postMessage", Refusal(status=503))
    else:
        dying.dies_at = "confirm"
    with pytest.raises((TransientError, Killed)):
        new_notifier(services, slack, clock).notify(batch)
    dying.dies_at = ""

    new_notifier(services, slack, clock).notify(batch)

    assert texts(slack.thread).count("*run failed*") == 1
    assert texts(slack.thread).count("Nothing billable is left") == 1


def test_card_whose_place_was_not_kept_is_found_and_goes_on_living(
    stream, story, services, slack, clock, dying
):
    story.begin()
    batch = read_batch(stream.next_batch())
    dying.dies_at = "card"
    with pytest.raises(Killed):
        new_notifier(services, slack, clock).notify(batch)
    dying.dies_at = ""
    story.phases(ev.RunPhase.PROVISIONING)

    new_notifier(services, slack, clock).notify(batch)

    assert len(slack.cards) == 1
    assert "Provisioning" in slack.card.seen
    assert slack.card.arguments["ts"] == slack.cards[0].ts


def test_marks_of_another_run_are_not_taken_for_ones_own(stream, services, slack, clock, dying):
    first, second = (Story(services, clock, run_id=f"tiny-llama-0000000{i}") for i in (1, 2))
    first.begin()
    tell(new_notifier(services, slack, clock), stream)
    second.begin()
    batch = read_batch(stream.next_batch())
    slack.refuse("chat.postMessage", Refusal(status=503))
    with pytest.raises(TransientError):
        new_notifier(services, slack, clock).notify(batch)

    new_notifier(services, slack, clock).notify(batch)

    assert [second.run_id in card.seen for card in slack.cards] == [False, True]


def test_thread_that_cannot_be_read_gets_the_line_again(
    tells, notifier, stream, story, slack, clock
):
    story.begin()
    tells()
    story.happen(cl.CheckFinished, check="nodes", passed=True, detail="2 of 2 ready")
    batch = read_batch(stream.next_batch())
    slack.refuse("chat.postMessage", Refusal(status=503))
    slack.refuse("conversations.replies", Refusal(error="missing_scope"))
    with pytest.raises(TransientError):
        notifier.notify(batch)

    clock.advance(1)
    notifier.notify(batch)

    assert ["2 of 2 ready" in call.seen for call in slack.thread] == [True]
