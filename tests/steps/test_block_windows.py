"""A run on a capacity block waits for its start, and is stopped and saved before its end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.commands.permitting import Actor
from stationmaster.commands.runs import stop_run
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import Window
from stationmaster.domain.errors import RunStopped
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.acquire_cluster import acquire_cluster
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.keep_clock import keep_clock
from stationmaster.steps.prepare_cluster import prepare_cluster
from stationmaster.steps.reap import reap
from stationmaster.steps.release_lease import release_lease
from tests.support.aws_steps import P5_BLOCK, TO_RUNNING, Account, block


@pytest.fixture
def booked(alone: Account) -> Account:
    """A run that was typed a day before its block starts, on a clock of the future."""
    alone.set_in_future()
    alone.ask(**P5_BLOCK, reservation=block(alone.now() + timedelta(days=1)))
    alone.cluster_id = ClusterId(alone.run_id)
    return alone


@pytest.fixture
def training(alone: Account) -> Account:
    """A run that trains in its block, which has begun."""
    alone.set_in_future()
    alone.request(**P5_BLOCK, reservation=block(alone.now()))
    alone.happen_to_cluster(cl.ClusterPhaseChanged, phase=ClusterPhase.READY)
    alone.enter(*TO_RUNNING[1:])
    alone.happen(ev.TrainingStarted, total_steps=10)
    return alone


def window(booked: Account) -> Window:
    found = booked.run.request.reservation
    assert found is not None
    assert found.window is not None
    return found.window


def acquire(booked: Account) -> None:
    acquire_cluster(booked.services, booked.run_id, task_token="token")


def ring(booked: Account) -> list[str]:
    """What Step Functions is asked to do when the clock rings."""
    booked.aws.forget_calls()
    keep_clock(booked.services, booked.cluster_id)
    return [name for service, name in booked.aws.calls if service == "states"]


def status(cluster: Cluster, booked: Account) -> str | None:
    return booked.services.workflows.cluster_status(cluster.cluster_id, pass_number=1)


def test_run_waits_for_its_block_and_says_until_when(booked: Account):
    acquire(booked)

    assert booked.run.phase is RunPhase.QUEUED
    starts = f"{window(booked).starts_at:%Y-%m-%d %H:%M} UTC"
    assert f"starts at {starts}, nothing is made before" in booked.run.reason
    assert booked.cluster.phase is ClusterPhase.REQUESTED
    assert booked.cluster.resources == {}
    assert status(booked.cluster, booked) is None
    assert booked.clock == window(booked).starts_at


def test_clock_begins_the_cluster_at_the_start_of_the_block(booked: Account):
    acquire(booked)
    assert ring(booked) == []  # too early

    booked.come_to(window(booked).starts_at)

    assert ring(booked) == ["StartExecution"]
    assert status(booked.cluster, booked) == "RUNNING"
    assert booked.clock == window(booked).warn_at
    prepare_cluster(booked.services, booked.cluster_id, pass_number=1)
    assert booked.run.phase is RunPhase.PROVISIONING


def test_reaper_leaves_a_run_that_waits_alone_and_begins_it_where_the_clock_was_lost(
    booked: Account,
):
    acquire(booked)
    booked.come_to(window(booked).starts_at - timedelta(hours=1))
    reap(booked.services)
    assert status(booked.cluster, booked) is None

    booked.services.schedules.delete(booked.cluster_id)
    booked.come_to(window(booked).starts_at + timedelta(minutes=1))
    reap(booked.services)

    assert status(booked.cluster, booked) == "RUNNING"


def test_run_that_is_stopped_while_it_waits_has_made_nothing(booked: Account):
    acquire(booked)

    stop_run(booked.services, booked.run_id, who=Actor(channel_id="C1", user_id="U1"))
    release_lease(booked.services, booked.run_id)

    assert booked.cluster.phase is ClusterPhase.DRAINING
    assert booked.call(begin_teardown)
    assert booked.clock is None
    booked.come_to(window(booked).starts_at)
    assert ring(booked) == []
    assert booked.cluster.resources == {}


def test_run_that_comes_late_into_its_block_is_warned_at_once(booked: Account):
    booked.come_to(window(booked).leave_at - timedelta(minutes=5))

    acquire(booked)

    assert len(booked.events("capacity.ending")) == 1
    assert status(booked.cluster, booked) == "RUNNING"
    assert booked.clock == window(booked).leave_at


def test_run_that_comes_too_late_into_its_block_is_stopped_and_holds_nothing(booked: Account):
    booked.come_to(window(booked).leave_at)

    with pytest.raises(RunStopped, match="stopped because capacity block"):
        acquire(booked)

    assert booked.cluster.phase is ClusterPhase.DRAINING
    assert status(booked.cluster, booked) is None


def test_people_are_warned_once_before_the_block_ends(training: Account):
    training.come_to(window(training).warn_at)

    ring(training)
    ring(training)

    (warned,) = training.events("capacity.ending")
    assert "AWS takes its nodes back from" in warned.reason
    assert "the run is stopped at" in warned.reason
    assert training.clock == window(training).leave_at
    assert training.run.stop_requested_by is None


@pytest.mark.parametrize("look", [keep_clock, None], ids=["clock", "reaper"])
def test_run_is_stopped_and_saved_before_its_block_ends(training: Account, look):
    training.come_to(window(training).leave_at)

    if look is None:
        reap(training.services)
    else:
        look(training.services, training.cluster_id)
        look(training.services, training.cluster_id)

    (stop,) = training.events("run.stop_requested")
    assert "stopped because capacity block cr-0123456789abcdef0 ends at" in stop.why
    assert training.run.is_stopping
    training.enter(RunPhase.SAVING, reason=training.run.stop_why)
    assert outcome_of(training.run) is RunPhase.STOPPED
    assert window(training).taken_back_at - training.now() >= timedelta(minutes=10)


def test_run_that_is_saved_already_is_not_stopped_again(training: Account):
    training.enter(RunPhase.SAVING)
    training.come_to(window(training).leave_at)

    ring(training)

    assert training.events("run.stop_requested") == []


def test_run_that_a_person_has_stopped_stays_stopped_by_that_person(training: Account):
    training.happen(ev.StopRequested, user_id="U1")
    training.come_to(window(training).leave_at)

    ring(training)

    assert (training.run.stop_requested_by, training.run.stop_why) == ("U1", "")
