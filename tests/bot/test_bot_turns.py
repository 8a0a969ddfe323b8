"""Invocations of the notifier write to Slack one after another."""

from __future__ import annotations

from datetime import UTC, datetime

import boto3
import pytest
from bot_world import REGION

from bot import notifier_handler
from bot.turns import turn
from stationmaster.aws.slack_writer import LEASE


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
