"""A kept cluster warns people before it goes, and goes; also where its clock is lost or late."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from stationmaster.cluster_upkeep import follow_up
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.keeping import WARN_BEFORE
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Wait
from stationmaster.saving_reactions import results_unsaved
from stationmaster.steps.acquire_cluster import acquire_cluster
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.keep_clock import keep_clock
from stationmaster.steps.reap import reap
from stationmaster.steps.release_lease import release_lease
from tests.support.aws_steps import Account

TO_READY = (ClusterPhase.PROVISIONING, ClusterPhase.READY)


@pytest.fixture
def kept(alone: Account) -> Account:
    """A ready cluster that is kept for eight hours, on a clock of the future."""
    alone.set_in_future()
    alone.keep(*TO_READY)
    return alone


def until(kept: Account) -> datetime:
    time = kept.cluster.keep_until
    assert time is not None
    return time


def ring(kept: Account) -> list[str]:
    """What is sent to the bus, or asked of the scheduler, when the clock rings."""
    kept.aws.forget_calls()
    keep_clock(kept.services, kept.cluster_id)
    return [name for service, name in kept.aws.calls if service in ("events", "scheduler")]


def test_clock_warns_then_lets_the_cluster_go_and_is_stopped(kept: Account):
    follow_up(kept.services, kept.cluster)
    assert kept.clock == until(kept) - WARN_BEFORE
    version = kept.cluster.version
    ring(kept)
    assert kept.cluster.version == version, "it is too early"

    kept.come_to(until(kept) - WARN_BEFORE)
    ring(kept)
    ring(kept)
    assert [event.keep_until for event in kept.events("cluster.keep_ending")] == [until(kept)]
    assert kept.cluster.phase is ClusterPhase.READY
    assert kept.clock == until(kept)

    kept.come_to(until(kept))
    assert ring(kept) == ["PutEvents"]
    assert kept.cluster.phase is ClusterPhase.DRAINING
    assert kept.call(begin_teardown)
    assert kept.clock is None


def test_longer_keep_moves_the_clock(kept: Account):
    follow_up(kept.services, kept.cluster)
    longer = until(kept) + timedelta(hours=8)

    kept.happen_to_cluster(cluster_events.KeepExtended, keep_until=longer, user_id="U1")
    follow_up(kept.services, kept.cluster)

    assert kept.clock == longer - WARN_BEFORE


def test_run_that_keeps_its_cluster_sets_the_clock_when_it_leaves(account: Account):
    account.set_in_future()
    account.request()
    account.happen_to_cluster(
        cluster_events.KeepExtended, keep_until=account.now() + timedelta(hours=1), user_id="U1"
    )

    release_lease(account.services, account.run_id)

    assert account.clock == account.now() + timedelta(minutes=50)


def test_cluster_that_nobody_keeps_has_no_clock(account: Account):
    account.request()
    account.aws.forget_calls()

    release_lease(account.services, account.run_id)
    account.call(begin_teardown)

    assert "scheduler" not in {service for service, _ in account.aws.calls}


def test_reaper_sets_a_clock_that_was_lost_and_acts_where_it_is_late(kept: Account):
    assert kept.clock is None

    assert reap(kept.services) == []
    assert kept.clock == until(kept) - WARN_BEFORE

    kept.services.schedules.delete(kept.cluster_id)
    kept.come_to(until(kept) + timedelta(hours=1))
    kept.aws.forget_calls()
    assert reap(kept.services) == [kept.cluster_id]
    assert kept.cluster.phase is ClusterPhase.DRAINING
    assert ("events", "PutEvents") in kept.aws.calls, "its teardown does not wait for the next one"
    kept.come_to(kept.now() + timedelta(minutes=15))
    assert reap(kept.services) == [kept.cluster_id]
    assert kept.services.workflows.teardown_status(kept.cluster_id, attempt=1) == "RUNNING"


def test_clock_that_cannot_be_set_keeps_nobody_waiting(kept: Account):
    kept.set(schedule_group="lost")
    guest = kept.guest("a")
    kept.services.runs.save_task_token(guest.run_id, Wait.CLUSTER, "token")
    kept.happen_to_cluster(cluster_events.LeaseRequested, run_id=guest.run_id, nodes=1)
    kept.aws.forget_calls()

    follow_up(kept.services, kept.cluster)

    assert ("scheduler", "CreateSchedule") in kept.aws.calls
    assert ("states", "SendTaskSuccess") in kept.aws.calls
    assert reap(kept.services) == []


def test_clock_of_a_cluster_that_is_not_known_rings_for_nobody(account: Account):
    keep_clock(account.services, account.cluster_id)

    assert account.services.cluster_states.find(account.cluster_id) is None


def unsaved(kept: Account, name: str = "a", **request: object) -> Account:
    """A run that has trained on the cluster, and whose results are not saved so far."""
    run = kept.guest(name, nodes=1, **request)
    acquire_cluster(run.services, run.run_id, task_token=run.run_id)
    run.enter(ev.RunPhase.SUBMITTING, ev.RunPhase.RUNNING)
    run.happen(ev.TrainingStarted, total_steps=9)
    run.enter(ev.RunPhase.SAVING)
    run.happen(ev.ResultsUnsaved, reason="denied")
    return run


def test_cluster_that_only_unsaved_results_hold_goes_at_the_end_of_its_time(kept: Account):
    unsaved(kept)
    kept.come_to(until(kept) - timedelta(seconds=1))
    assert "PutEvents" not in ring(kept)

    kept.come_to(until(kept))
    assert "PutEvents" in ring(kept)

    assert kept.call(begin_teardown)
    assert kept.cluster.is_going_away
    assert kept.cluster.open_leases, "what the results need is held"


def test_keep_of_a_run_whose_results_are_not_saved_begins_when_saving_gives_up(kept: Account):
    unsaved(kept, keep_s=600)
    kept.come_to(until(kept) - timedelta(seconds=1))
    unsaved(kept, "b", keep_s=600)

    kept.late += timedelta(seconds=599)
    assert "PutEvents" not in ring(kept)
    kept.late += timedelta(seconds=2)
    assert "PutEvents" in ring(kept)


def test_cluster_with_unsaved_results_stays_while_another_run_uses_it(kept: Account):
    unsaved(kept)
    other = kept.guest("b", nodes=1)
    acquire_cluster(other.services, other.run_id, task_token="b")
    kept.come_to(until(kept))
    assert "PutEvents" not in ring(kept)

    other.enter(ev.RunPhase.FAILED, reason="for the test")
    release_lease(other.services, other.run_id)
    assert "PutEvents" in ring(kept)


def test_saving_that_gives_up_when_the_time_is_over_lets_the_cluster_go(kept: Account):
    run = unsaved(kept)
    run.happen(ev.SavingRequested)
    kept.come_to(until(kept))
    assert "PutEvents" not in ring(kept)
    kept.aws.forget_calls()

    results_unsaved(kept.services, run.run, reason="denied again")

    assert ("events", "PutEvents") in kept.aws.calls
