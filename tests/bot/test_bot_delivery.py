"""The notifier's memory, and how its invocations take turns: claims, versions, budgets, leases."""

from __future__ import annotations

from datetime import UTC, datetime

import boto3
import pytest
from bot_world import REGION

from bot import notifier_handler
from stationmaster.aws.delivery_store import LEASE
from stationmaster.domain.errors import WriteConflict
from stationmaster.turns import turn


def test_claim_comes_back_with_its_time_until_it_is_confirmed(services, clock):
    first = clock.now()
    assert services.deliveries.claim("run-1", ["e1"], now=first) == {"e1": None}
    clock.advance(5)
    again = services.deliveries.claim("run-1", ["e1", "e2"], now=clock.now())
    assert again == {"e1": first, "e2": None}

    services.deliveries.confirm("run-1", ["e1", "e2"], now=clock.now())

    assert services.deliveries.claim("run-1", ["e1", "e2"], now=clock.now()) == {}


def test_delivery_saved_over_a_newer_one_is_refused(services, clock):
    old = services.deliveries.load("run-1")
    services.deliveries.save(old, now=clock.now())

    with pytest.raises(WriteConflict, match="not at version 0"):
        services.deliveries.save(old, now=clock.now())


def test_budget_of_edits_is_used_and_never_above_fifty_a_minute(services, clock):
    taken = []
    while len(taken) < 90:
        wait_s = services.deliveries.take_update_token(clock.now())
        if wait_s == 0:
            taken.append(clock.monotonic())
        else:
            clock.advance(wait_s + 1e-3)

    windows = [sum(at <= other < at + 60 for other in taken) for at in taken]
    assert 45 <= max(windows) <= 50


def test_budget_keeps_its_reserve_for_urgent_edits(services, clock):
    while services.deliveries.take_update_token(clock.now(), reserve=3) == 0:
        pass

    urgent = [services.deliveries.take_update_token(clock.now()) for _ in range(4)]

    assert urgent[:3] == [0, 0, 0]
    assert urgent[3] == pytest.approx(2.0)
    assert services.deliveries.take_update_token(clock.now(), team="T0SECOND", reserve=3) == 0


def test_second_writer_waits_until_the_first_has_finished(services, clock):
    first = turn(services)
    first.__enter__()
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            first.__exit__(None, None, None)

    with turn(services, sleep=sleep) as is_ours:
        assert is_ours
        assert not services.slack_writer.take("a third", now=clock.now())

    assert len(waits) == 3
    assert services.slack_writer.take("a third", now=clock.now())


def test_writer_that_waits_too_long_gets_no_turn(services, clock):
    assert services.slack_writer.take("another", now=clock.now())
    waits: list[float] = []

    with turn(services, patience_s=3, sleep=waits.append) as is_ours:
        assert not is_ours

    assert sum(waits) == 3
    assert not services.slack_writer.take("a third", now=clock.now())


def test_refresh_leaves_the_turn_to_a_batch_that_is_posted(settings, services, slack, story):
    story.begin()
    services.slack_writer.take("another", now=datetime.now(UTC))  # the handler's own clock

    notifier_handler.handler({}, None)

    assert slack.attempts == []


def test_turn_of_a_killed_writer_ends_with_its_lease(services, clock):
    services.slack_writer.take("killed", now=clock.now())
    clock.advance(LEASE.total_seconds() - 1)
    assert not services.slack_writer.take("next", now=clock.now())
    clock.advance(2)

    assert services.slack_writer.take("next", now=clock.now())
    services.slack_writer.give_back("killed")
    assert not services.slack_writer.take("a third", now=clock.now())


def test_writer_that_fails_gives_its_turn_back(services, clock):
    with pytest.raises(ValueError, match="batch"), turn(services):
        raise ValueError("batch")

    assert services.slack_writer.take("next", now=clock.now())


def test_batch_of_what_turns_leave_in_the_table_takes_no_turn(settings, stream, services, clock):
    """Else each turn would bring the next batch, for ever."""
    services.slack_writer.take("another", now=datetime.now(UTC))

    notifier_handler.handler(stream.next_batch(), None)

    item = boto3.client("dynamodb", REGION).scan(TableName="runs")["Items"][0]
    assert item["owner"] == {"S": "another"}
