"""When a run is backed up: by the clock, by its checkpoints, and once at a time."""

from __future__ import annotations

from datetime import timedelta

import pytest
from histories import event

from stationmaster.domain.reactions.backups import PAUSE, LookAtBackup, StartBackup
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import RelayHeard
from stationmaster.domain.reactions.workflow import Do, EndWait
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.events import RunPhase
from tests.support.factories import START, make_request
from tests.support.factories import make_run as make_run_in

HOUR = timedelta(hours=1)
SAVED = {"num_bytes": 9, "uri": "s3://b/runs/r/", "manifest_sha256": "0" * 64}


def take(run: Run, kind: type, *, at: timedelta, **fields: object) -> Run:
    return apply(run, event(kind, at=at.total_seconds(), **fields))


def trains(phase: RunPhase = RunPhase.RUNNING, **values: object) -> Run:
    """A run with a checkpoint of step 40, backed up every hour."""
    usual = {
        "training_started_at": START,
        "trainer_seen_at": START + 100 * HOUR,
        "last_checkpoint_step": 40,
        "request": make_request(backup_every_s=3600),
    }
    return make_run_in(phase, **(usual | values))


def heard(run: Run, after: timedelta, *, heartbeat: bool = True) -> tuple[object, ...]:
    reactions = decide(run, RelayHeard(START + after, heartbeat=heartbeat), POLICY)
    return tuple(each for each in reactions if isinstance(each, StartBackup | LookAtBackup))


def begun(run: Run, *, at: timedelta = HOUR) -> Run:
    return take(run, ev.BackupStarted, at=at, number=run.backups.number + 1, step=40)


def saved(run: Run, *, at: timedelta = HOUR, step: int = 40) -> Run:
    return take(
        begun(run, at=at), ev.BackupSaved, at=at, number=run.backups.number + 1, step=step, **SAVED
    )


def failed(run: Run, *, at: timedelta = HOUR) -> Run:
    number = run.backups.number + 1
    return take(begun(run, at=at), ev.BackupFailed, at=at, number=number, reason="denied")


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
    looked = take(run, ev.BackupLookedAt, at=HOUR + minute, number=1)
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

    assert take(run, kind, at=3 * HOUR, number=1, **fields[kind]) == run
    assert take(run, ev.BackupStarted, at=3 * HOUR, number=2, step=9) == run
