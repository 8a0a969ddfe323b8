"""What becomes of a run when AWS refuses a call; the runs are in workflow_api_faults."""

from __future__ import annotations

import pytest
from workflow_api_faults import (
    NUM_THROTTLED_RUNS,
    OCCASIONAL,
    OPERATIONS,
    REFUSED,
    refused_name,
    throttled_name,
)
from workflow_scenarios import Played

from stationmaster.domain.events import RunPhase
from stationmaster.domain.run import TeardownStatus


def test_operations_of_an_undisturbed_run_are_all_among_those_that_are_refused(
    played: Played,
) -> None:
    played.of("plain")

    assert played.api_calls["plain"] - OCCASIONAL == set(OPERATIONS)


@pytest.mark.parametrize("part", range(NUM_THROTTLED_RUNS))
def test_run_whose_calls_are_each_throttled_once_succeeds_and_leaves_nothing(
    played: Played, part: int
) -> None:
    outcome = played.of(throttled_name(part))

    assert outcome.run.phase is RunPhase.SUCCEEDED
    assert outcome.run.teardown is TeardownStatus.COMPLETED
    assert outcome.left == []


@pytest.mark.parametrize(("service", "operation"), REFUSED)
def test_run_whose_call_is_refused_for_good_ends_told_or_reaped_and_leaves_nothing(
    played: Played, service: str, operation: str
) -> None:
    name = refused_name(service, operation)
    by_itself, finally_ = played.of(name), played.finally_of(name)

    # By itself: gone, or told that it is not; silent only where the table or the workflows
    # themselves refuse, which is what the reaper is for.
    told = bool(by_itself.events_of("teardown.failed"))
    silent = (service, operation) in (
        ("dynamodb", "TransactWriteItems"),
        ("events", "PutEvents"),
        ("stepfunctions", "StartExecution"),
    )
    assert by_itself.left == [] or told or silent
    assert finally_.run.phase.is_terminal
    assert finally_.run.teardown is TeardownStatus.COMPLETED
    assert finally_.left == []
