"""How people hear of what concerns them: mentions in threads, direct messages, both, or neither."""

from __future__ import annotations

import pytest
from bot_world import CHANNEL, USER, Killed, new_notifier

from bot.stream import read_batch
from stationmaster.commands import Actor, set_notices
from stationmaster.domain.run.events import RunPhase

DIRECT = "D0OPERATOR"
WHO = Actor(user_id=USER, channel_id="")


@pytest.fixture
def batch(story, stream):
    """A run has failed."""
    story.begin()
    story.phases(RunPhase.FAILED, reason="out of memory")
    return read_batch(stream.next_batch())


def directly(slack):
    return [each.seen for each in slack.of("chat.postMessage") if DIRECT in each.arguments.values()]


def posted(slack):
    (line,) = (call.seen for call in slack.thread if "*run failed*" in call.seen)
    return line


@pytest.mark.parametrize(
    ("notices", "lost", "is_mentioned", "num_direct"),
    [
        (None, {}, True, 0),
        ("both", {}, True, 1),
        ("direct", {}, False, 1),
        ("neither", {}, False, 0),
        ("direct", {DIRECT: "channel_not_found"}, True, 0),
    ],
)
def test_failure_is_told_as_the_requester_wants_it_and_once(
    services, slack, clock, story, batch, notices, lost, is_mentioned, num_direct
):
    if notices is not None:
        set_notices(services, WHO, notices)
    slack.lost |= lost
    for _ in range(2):
        new_notifier(services, slack, clock).notify(batch)

    assert (f"<@{USER}>" in posted(slack)) is is_mentioned
    assert len(directly(slack)) == num_direct
    for message in directly(slack):
        assert "out of memory" in message
        assert f"`{story.run_id}` in <#{CHANNEL}>" in message


def test_crash_between_direct_message_and_thread_repeats_neither(
    services, slack, clock, dying, batch
):
    set_notices(services, WHO, "direct")
    dying.dies_at = "confirm"
    with pytest.raises(Killed):
        new_notifier(services, slack, clock).notify(batch)
    assert (len(directly(slack)), slack.thread) == (1, [])
    dying.dies_at = ""
    new_notifier(services, slack, clock).notify(batch)

    assert posted(slack)
    assert len(directly(slack)) == 1


def test_direct_messages_keep_to_the_pace_of_posts(services, slack, clock, notifier, batch):
    set_notices(services, WHO, "both")
    while not services.deliveries.take_post_token(DIRECT, clock.now()):
        pass
    before = clock.now()
    notifier.notify(batch)

    assert len(directly(slack)) == 1
    assert (clock.now() - before).total_seconds() >= 0.9
