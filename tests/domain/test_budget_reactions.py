"""A run is warned of its budget once at each part of it, and stopped where it ends."""

from __future__ import annotations

import pytest
from histories import event, take

from stationmaster.domain.reactions.budgets import WarnOfBudget
from stationmaster.domain.reactions.ending import StopRun
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import Spent
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from tests.support.factories import make_request, make_run


def with_budget(usd: float | None, phase: RunPhase = RunPhase.RUNNING) -> Run:
    return make_run(phase, request=make_request().model_copy(update={"budget_usd": usd}))


@pytest.mark.parametrize(
    ("spent", "percent"), [(0, 0), (49.99, 0), (50, 50), (79, 50), (80, 80), (95, 95), (99.99, 95)]
)
def test_each_part_of_a_budget_is_said_once(spent, percent):
    run = with_budget(100)

    warned = decide(run, Spent(spent), POLICY)

    assert warned == ((WarnOfBudget(percent),) if percent else ())
    known = take(run, event(ev.BudgetReached, percent=percent, spent_usd=spent))
    assert decide(known, Spent(spent), POLICY) == ()


@pytest.mark.parametrize("phase", [RunPhase.PROVISIONING, RunPhase.RUNNING, RunPhase.RECOVERING])
def test_run_is_stopped_at_its_budget_wherever_it_is(phase):
    (stop,) = decide(with_budget(100, phase), Spent(100.4), POLICY)

    assert stop == StopRun(
        "budget", "stopped because its budget of $100.00 is used up: it has cost $100.40"
    )


@pytest.mark.parametrize("phase", [RunPhase.SAVING, RunPhase.SUCCEEDED, RunPhase.STOPPED])
def test_run_that_ends_is_left_alone(phase):
    assert decide(with_budget(1, phase), Spent(9), POLICY) == ()
    asked = take(with_budget(1), event(ev.StopRequested, user_id="U1"))
    assert decide(asked, Spent(9), POLICY) == ()


def test_run_without_a_budget_has_no_end():
    assert decide(with_budget(None), Spent(10**9), POLICY) == ()
