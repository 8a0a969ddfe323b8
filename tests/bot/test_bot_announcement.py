"""A run starts only where its card could be posted: refusals, duplicates, unknown outcomes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from bot_world import CHANNEL, USER, seen, started_clusters, started_workflows
from recording_slack import Refusal

from bot.stream import read_batch
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.reap import reap

STARTS = 12


def assert_nothing_started(services, settings) -> None:
    assert services.runs.list_recent() == []
    assert started_workflows(settings) == []


def test_card_is_posted_before_the_run_is_written(person, services, settings, slack):
    written_when_posted = []
    slack.when_posted = lambda call: written_when_posted.append(services.runs.list_recent())

    answer = person.type("tiny-llama steps=60")

    (run,) = services.runs.list_recent()
    assert answer["answer"]["response_type"] == "ephemeral"
    assert run.run_id in seen(answer)
    assert (run.request.channel_id, run.request.user_id) == (CHANNEL, USER)
    assert run.request.overrides == {"steps": "60"}
    assert written_when_posted == [[]]
    assert slack.cards[0].arguments["channel"] == CHANNEL
    assert run.run_id in slack.cards[0].seen
    assert services.deliveries.load(run.run_id).card_ts == slack.cards[0].ts
    assert started_workflows(settings) == [run.run_id]


@pytest.mark.parametrize(
    ("channel", "code", "advice"),
    [
        (CHANNEL, "not_in_channel", "/invite @Stationmaster"),
        (CHANNEL, "channel_not_found", "/invite @Stationmaster"),
        (CHANNEL, "is_archived", "this one is archived"),
        (CHANNEL, "restricted_action_read_only_channel", "let an admin allow it"),
        ("D0TWO", "channel_not_found", "type the command in a channel"),  # of two others
    ],
)
def test_channel_that_takes_no_card_starts_nothing(
    person, services, settings, slack, channel, code, advice
):
    slack.lost[channel] = code

    answer = person.type("tiny-llama", channel_id=channel)

    assert advice in seen(answer)
    assert ("/invite" in seen(answer)) == ("/invite" in advice)
    assert "nothing was started" in seen(answer)
    assert answer["answer"]["response_type"] == "ephemeral"
    assert_nothing_started(services, settings)


def test_card_of_the_slower_of_two_deliveries_is_deleted(person, services, settings, slack):
    def type_again(_call: object) -> None:
        slack.when_posted = lambda call: None
        person.type("tiny-llama", trigger_id="faster")

    slack.when_posted = type_again
    person.type("tiny-llama", trigger_id="slower")

    (run,) = services.runs.list_recent()
    assert len(slack.of("chat.postMessage")) == 2
    assert [card.ts for card in slack.cards] == [services.deliveries.load(run.run_id).card_ts]
    assert started_workflows(settings) == [run.run_id]


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(status=429, error="ratelimited", headers={"Retry-After": "1"}),
        Refusal(status=503, error="service_unavailable"),
        Refusal(status=503, carried_out=True),  # the card is there, and is found by its mark
    ],
)
def test_run_whose_card_had_to_wait_starts_with_it(
    person, services, settings, slack, clock, stream, notifier, refusal
):
    clock.at = datetime.now(UTC)
    slack.refuse("chat.postMessage", refusal)

    answer = person.type("tiny-llama")

    assert "the run starts with it, and nothing is made before" in seen(answer)
    assert slack.attempts.count("chat.postMessage") == 1
    assert started_workflows(settings) == []

    notifier.notify(read_batch(stream.next_batch()))

    (run,) = services.runs.list_recent()
    assert [run.run_id in card.seen for card in slack.cards] == [True]
    assert started_workflows(settings) == [run.run_id]


def test_many_starts_in_one_channel_are_all_answered_and_run(
    person, services, settings, slack, clock, stream, notifier
):
    clock.at = datetime.now(UTC)
    for number in range(STARTS):
        assert "is on its way" in seen(person.type(f"tiny-llama seed={number}"))
    at_once = len(slack.cards)
    assert at_once < STARTS

    for _ in range(STARTS):
        notifier.notify(read_batch(stream.next_batch()))

    assert len(slack.cards) == len(started_workflows(settings)) == STARTS
    assert "conversations.history" not in slack.attempts  # Slack allows one look a minute
    assert clock.monotonic() - datetime.now(UTC).timestamp() <= STARTS - at_once


@pytest.mark.parametrize("way", ["late", "refused", "reaped"])
def test_start_whose_card_cannot_be_posted_is_taken_back(
    person, services, settings, slack, clock, stream, notifier, way
):
    clock.at = datetime.now(UTC)
    slack.refuse("chat.postMessage", Refusal(status=503, error="service_unavailable"))
    person.type("tiny-llama")
    clock.advance(61 if way != "refused" else 1)
    slack.lost |= {CHANNEL: "is_archived"} if way == "refused" else {}

    if way == "reaped":
        reap(services)
    notifier.notify(read_batch(stream.next_batch()))

    (run,) = services.runs.list_recent()
    assert run.phase is RunPhase.FAILED
    assert started_workflows(settings) == []
    why = "is_archived" if way == "refused" else "Slack did not take its card within a minute"
    assert "nothing was made" in slack.card.seen
    assert why in slack.card.seen


def test_cluster_whose_card_has_no_room_is_refused_in_a_sentence(person, settings, slack):
    slack.refuse("chat.postMessage", Refusal(status=429, error="ratelimited"))

    answer = person.type("cluster create lab nodes=2")

    assert "type the command again in a few seconds" in seen(answer)
    assert started_clusters(settings) == []
