"""When a run is backed up, by the clock and its checkpoints, and what its budget does to it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from histories import event, take

from stationmaster.domain.reactions.backups import PAUSE, LookAtBackup, StartBackup
from stationmaster.domain.reactions.budgets import WarnOfBudget
from stationmaster.domain.reactions.ending import StopRun
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import RelayHeard, Spent
from stationmaster.domain.reactions.workflow import Do, EndWait
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.events import RunPhase
from tests.support.factories import START, make_request, make_run

HOUR = timedelta(hours=1)
SAVED = {"num_bytes": 9, "uri": "s3://b/runs/r/", "manifest_sha256": "0" * 64}


def after(run: Run, kind: type, *, at: timedelta, **fields: object) -> Run:
    return apply(run, event(kind, at=at.total_seconds(), **fields))


def trains(phase: RunPhase = RunPhase.RUNNING, **values: object) -> Run:
    """A run with a checkpoint of step 40, backed up every hour."""
    usual = {
        "training_started_at": START,
        "trainer_seen_at": START + 100 * HOUR,
        "last_checkpoint_step": 40,
        "request": make_request(backup_every_s=3600),
    }
    return make_run(phase, **(usual | values))


def heard(run: Run, after: timedelta, *, heartbeat: bool = True) -> tuple[object, ...]:
    reactions = decide(run, RelayHeard(START + after, heartbeat=heartbeat), POLICY)
    return tuple(each for each in reactions if isinstance(each, StartBackup | LookAtBackup))


def begun(run: Run, *, at: timedelta = HOUR) -> Run:
    return after(run, ev.BackupStarted, at=at, number=run.backups.number + 1, step=40)


def saved(run: Run, *, at: timedelta = HOUR, step: int = 40) -> Run:
    return after(
        begun(run, at=at), ev.BackupSaved, at=at, number=run.backups.number + 1, step=step, **SAVED
    )


def failed(run: Run, *, at: timedelta = HOUR) -> Run:
    number = run.backups.number + 1
    return after(begun(run, at=at), ev.BackupFailed, at=at, number=number, reason="denied")


def test_backup_is_due_once_its_time_has_passed():
    beat = RelayHeard(START + HOUR, heartbeat=True)
    recovers = trains(RunPhase.RECOVERING, set_back_at=START + HOUR)

    assert heard(trains(), HOUR - timedelta(seconds=1)) == ()
    assert heard(trains(), HOUR, heartbeat=False) == ()
    assert decide(trains(), beat, POLICY) == (Do.PROLONG_WAIT, StartBackup(number=1, step=40))
    assert StartBackup(1, 40) in decide(recovers, beat, POLICY)
    assert decide(trains(job_condition="Succeeded"), beat, POLICY) == (EndWait(),)


@pytest.mark.parametrize(
    "values",
    [
        {"phase": RunPhase.SUBMITTING},
        {"phase": RunPhase.SAVING},
        {"phase": RunPhase.SUCCEEDED},
        {"last_checkpoint_step": None},
        {"request": make_request(backup_every_s=3600, program=("torchrun", "theirs.py"))},
        {"stop_requested_by": "U7"},
        {"request": make_request(backup_every_s=3600, recipe="megatron-llama3-8b")},
        {"request": make_request(backup_every_s=None)},
        {"request": make_request()},  # every six hours
    ],
)
def test_run_is_not_backed_up_after_an_hour(values):
    assert heard(trains(**values), HOUR) == ()


def test_backup_that_runs_is_looked_at_once_a_minute_and_no_other_begun():
    run, minute = begun(trains()), timedelta(minutes=1)

    assert heard(run, HOUR + minute / 2) == ()
    assert heard(run, HOUR + minute) == (LookAtBackup(1),)
    looked = after(run, ev.BackupLookedAt, at=HOUR + minute, number=1)
    assert heard(looked, HOUR + minute * 1.5) == ()
    assert heard(looked, 9 * HOUR) == (LookAtBackup(1),)


def test_next_backup_waits_for_its_time_and_a_new_checkpoint():
    run = saved(trains())

    assert heard(run, 9 * HOUR) == ()
    newer = run.model_copy(update={"last_checkpoint_step": 50})
    assert heard(newer, 2 * HOUR - timedelta(seconds=1)) == ()
    assert heard(newer, 2 * HOUR) == (StartBackup(number=2, step=50),)


def test_failed_backup_is_tried_again_after_a_pause():
    run = failed(trains())

    assert heard(run, HOUR + PAUSE - timedelta(seconds=1)) == ()
    assert heard(run, HOUR + PAUSE) == (StartBackup(number=2, step=40),)


def test_newest_backup_stays_known_when_a_later_one_fails():
    run = failed(saved(trains(), step=40), at=2 * HOUR)

    assert (run.backups.newest.step, run.backups.failed) == (40, "denied")
    assert saved(run, at=3 * HOUR, step=60).backups.failed == ""


@pytest.mark.parametrize("kind", [ev.BackupFailed, ev.BackupSaved, ev.BackupLookedAt])
def test_news_of_an_earlier_backup_changes_nothing(kind):
    fields = {
        ev.BackupFailed: {"reason": "late"},
        ev.BackupSaved: {"step": 1, **SAVED},
        ev.BackupLookedAt: {},
    }
    run = begun(saved(trains()), at=2 * HOUR)

    assert after(run, kind, at=3 * HOUR, number=1, **fields[kind]) == run
    assert after(run, ev.BackupStarted, at=3 * HOUR, number=2, step=9) == run


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
