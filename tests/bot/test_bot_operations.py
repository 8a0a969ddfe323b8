"""The operations channel is told once what needs a person, which holds up nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bot_world import TableStream
from recording_slack import Refusal

from bot.notifier import Notifier
from bot.operations import post_what_was_set_aside
from bot.stream import read_batch
from stationmaster.domain.reactions.seen import MonthSpent
from stationmaster.services import Services
from stationmaster.settings import Settings

OPERATIONS = "C0OPERATIONS"


@pytest.fixture
def silent(settings: Settings, clock: Any) -> Services:
    """Services of a deployment that names no such channel."""
    return Services(settings, now=clock.now)


@pytest.fixture
def services(settings: Settings, clock: Any) -> Services:
    named = settings.model_copy(update={"operations_channel": OPERATIONS})
    return Services(named, now=clock.now)


def test_what_was_set_aside_is_named_in_the_operations_channel_once_an_hour(
    notifier: Notifier,
    stream: TableStream,
    services: Services,
    silent: Services,
    clock: Any,
    slack: Any,
) -> None:
    outbox = notifier._outbox
    for number in range(7):
        services.set_aside.put(
            function="recorder",
            what=f"event {number} of run <a>",
            reason="type: unknown",
            payload=str(number),
            now=clock.now(),
        )
    entries = read_batch(stream.next_batch()).set_aside

    for _ in range(2):
        post_what_was_set_aside(services, outbox, entries)
    clock.advance(timedelta(hours=1).total_seconds())
    post_what_was_set_aside(services, outbox, entries[:1])
    clock.advance(timedelta(hours=1).total_seconds())
    post_what_was_set_aside(silent, outbox, entries)

    first, second = slack.of("chat.postMessage")
    assert {first.arguments["channel"], second.arguments["channel"]} == {OPERATIONS}
    assert "event 4 of run &lt;a&gt;" in first.seen
    assert "and 2 more" in first.seen
    assert "stationmaster redrive" in second.seen


def test_operations_channel_that_is_lost_holds_up_nothing(
    notifier: Notifier, stream: TableStream, services: Services, clock: Any, slack: Any
) -> None:
    services.set_aside.put(function="recorder", what="w", reason="r", payload="p", now=clock.now())
    entries = read_batch(stream.next_batch()).set_aside
    slack.refuse("chat.postMessage", Refusal(error="channel_not_found"))

    post_what_was_set_aside(services, notifier._outbox, entries)

    assert len(slack.of("chat.postMessage")) <= 1


def test_orphans_are_named_once_for_each_cluster(
    notifier: Notifier, stream: TableStream, services: Services, clock: Any, slack: Any
) -> None:
    for _ in range(2):  # the reaper finds them again at each pass
        for cluster_id in ("lost-1", "lost-2"):
            finding = f"cluster {cluster_id} is unknown and has <volume> vol-1"
            services.orphans.seen(cluster_id, finding=finding, now=clock.now())
        notifier.notify(read_batch(stream.next_batch()))

    posts = slack.of("chat.postMessage")
    assert {each.arguments["channel"] for each in posts} == {OPERATIONS}
    assert [
        cluster_id
        for each in posts
        for cluster_id in ("lost-1", "lost-2")
        if cluster_id in each.seen
    ] == ["lost-1", "lost-2"]
    assert "&lt;volume&gt; vol-1" in posts[0].seen


def test_channel_hears_each_part_of_its_month_once_and_what_follows_at_its_end(
    notifier: Notifier, slack: Any
) -> None:
    for usd in (51.0, 60.0, 96.0, 100.5, 101.0):
        notifier.refresh([MonthSpent("C0TRAIN", "2026-11", usd, 100.0)])

    half, most, end = (call.arguments for call in slack.of("chat.postMessage"))
    assert {half["channel"], most["channel"], end["channel"]} == {"C0TRAIN"}
    spent = "of this channel's budget of $100.00 for 2026-11 is spent:"
    assert f"50 % {spent} $51.00" in half["text"]
    assert f"95 % {spent} $96.00" in most["text"]
    assert "Its runs are stopped" in str(end["blocks"])
    assert "<@" not in str([half, most, end])
