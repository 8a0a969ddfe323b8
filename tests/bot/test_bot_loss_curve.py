"""The curve of a run that has reported more steps than anybody draws: bounded, and true.

On the local endpoint: moto by itself copies the whole table for each transaction.
"""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import pytest
from bot_world import Clock, Story

from bot.uploads import read_curve
from stationmaster.aws.table import table_definition
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.local.aws import LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings

TABLES = (f"curves-{number}" for number in count())


@pytest.fixture
def services(aws: LocalAws, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Services:
    """On a table of its own."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    name = next(TABLES)
    aws.client("dynamodb").create_table(**table_definition(name))
    return Services(Settings(region=aws.region, table_name=name, bus_name="bus"), now=clock.now)


def loss_at(step: int) -> float:
    return 8.0 / (1 + step / 50)


def report(story: Story, *steps: int, first_seq: int = 1) -> Run:
    """Progress as the relay reports it: many events in one call, ids that are hashes."""
    events: list[ev.RunEvent] = [
        ev.ProgressReported(
            event_id=ev.run_event_id(story.run_id, "progress", seq),
            run_id=story.run_id,
            at=story.clock.now(),
            seq=seq,
            step=step,
            total_steps=1_000_000,
            loss_nats=loss_at(step),
        )
        for seq, step in enumerate(steps, first_seq)
    ]
    return story.services.runs.record(story.run_id, events)


def items(services: Services, *, sort: str = "") -> list[dict[str, Any]]:
    """Every item of the table, or those whose sort key begins so."""
    client = services.client("dynamodb")
    found = client.scan(TableName=services.settings.table_name)["Items"]
    return [item for item in found if item["SK"]["S"].startswith(sort)]


def test_curve_of_a_short_run_has_every_step(story: Story, services: Services) -> None:
    story.begin()
    run = report(story, *range(1, 101))

    curve = read_curve(services, run)

    assert curve.points == [(step, loss_at(step)) for step in range(1, 101)]


def test_curve_of_a_long_run_is_a_sample_from_its_first_step_to_its_last(
    story: Story, services: Services
) -> None:
    story.begin()
    run = report(story, *range(1, 401))

    curve = read_curve(services, run, most=100)

    steps = [step for step, _ in curve.points]
    assert (steps[0], steps[-1]) == (run.loss_points[0][0], 400)
    assert steps == sorted(set(steps))
    assert 100 <= len(steps) <= 100 + len(run.loss_points)
    assert all(loss == loss_at(step) for step, loss in curve.points)
    # At random: no part of the run is left out.
    assert max(after - before for before, after in pairwise(steps)) < 40


def test_steps_that_were_taken_again_are_on_the_curve_once(
    story: Story, services: Services
) -> None:
    story.begin()
    report(story, *range(1, 301))
    story.happen(ev.TrainingResumed, step=100)
    run = report(story, *range(101, 201), first_seq=301)

    curve = read_curve(services, run, most=200)

    steps = [step for step, _ in curve.points]
    assert steps == sorted(set(steps))
    assert steps[-1] == 200
    assert list(curve.resumed_at) == [100]


def test_frequent_events_lie_apart_and_are_listed_with_the_others(
    story: Story, services: Services
) -> None:
    story.begin()
    report(story, *range(1, 61))

    listed = services.runs.events(story.run_id)

    assert [event.step for event in listed if isinstance(event, ev.ProgressReported)] == [
        *range(1, 61)
    ]
    assert len(items(services, sort="STEP#")) == 60
    assert {event.type for event in services.runs.rare_events(story.run_id)}.isdisjoint(
        {"progress.reported"}
    )


def test_progress_that_is_delivered_again_is_one_event(story: Story, services: Services) -> None:
    story.begin()
    report(story, 1, 2, 3)

    run = report(story, 1, 2, 3, 4)

    assert (run.progress.step if run.progress else None) == 4
    assert len(items(services, sort="STEP#")) == 4


def test_no_item_of_the_table_grows_with_the_number_of_steps(
    story: Story, services: Services
) -> None:
    story.begin()
    largest = []
    for begin in (1, 121, 241):
        report(story, *range(begin, begin + 120), first_seq=begin)
        largest.append(max(len(str(item)) for item in items(services)))

    assert max(largest) < 8_000
