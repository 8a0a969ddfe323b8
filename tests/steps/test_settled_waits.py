"""How the end of a wait is carried out: repeated, late, and after the run's own end."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from stationmaster import commands
from stationmaster.domain.bus import RelayBatch
from stationmaster.domain.errors import TransientError
from stationmaster.domain.run import events as ev
from stationmaster.steps.await_job import await_job
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.record_events import record_batch
from tests.support.aws_steps import IDLE, Account

SPEED = IDLE
FAILED = ["SendTaskFailure"]


@pytest.fixture(name="training")
def account_whose_run_trains(account: Account) -> Account:
    """Nobody waits for its job yet."""
    account.train()
    return account


def waits(account: Account) -> list[str]:
    return told(account, lambda: await_job(account.services, account.run_id, task_token="token"))


def reports(account: Account) -> list[str]:
    """The relay says that the trainer has reported a failure."""
    event = ev.TrainingReportedFailure(
        event_id="failed", run_id=account.run_id, at=account.now(), reason="it failed"
    )
    batch = RelayBatch(
        run_id=account.run_id, batch_id="b", at=account.now(), events=[event], heartbeat=True
    )
    return told(account, lambda: record_batch(account.services, batch))


def told(account: Account, act: Any) -> list[str]:
    """What a workflow that waits hears of it."""
    account.aws.forget_calls()
    act()
    return [name for service, name in account.aws.calls if service == "states"]


def test_batch_delivered_again_ends_the_wait_that_the_first_delivery_did_not(training: Account):
    waits(training)
    training.aws.inject("states", "SendTaskFailure", "ThrottlingException", times=9)
    with pytest.raises(TransientError):
        reports(training)
    training.aws.clear_injected()

    assert [reports(training), reports(training)] == [FAILED, FAILED]
    assert len(training.events("training.failed")) == 1


def test_job_that_failed_before_the_wait_ends_it_as_it_begins(training: Account):
    assert reports(training) == [], "nobody waits yet"

    assert waits(training) == FAILED


def test_wait_that_begins_after_the_run_has_ended_ends_at_once(training: Account):
    training.call(begin_teardown)
    assert training.run.phase is ev.RunPhase.FAILED

    assert waits(training) == FAILED


def test_stop_ends_the_wait_and_a_second_one_too(training: Account):
    waits(training)

    for user_id in ("U7", "U8"):
        about = {"who": commands.Actor(channel_id="C1", user_id=user_id)}
        stop = partial(commands.stop_run, training.services, training.run_id, **about)
        assert told(training, stop) == FAILED
    assert training.run.stop_requested_by == "U7"


def test_late_batch_of_a_run_that_has_ended_settles_nothing(training: Account):
    waits(training)
    training.enter(ev.RunPhase.FAILED, reason="r")

    assert reports(training) == []
