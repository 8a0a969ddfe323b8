"""How the end of a wait is carried out: repeated, late, and after the run's own end.

Store and steps are real; EKS and Step Functions are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stationmaster import commands
from stationmaster.domain.bus import RelayBatch
from stationmaster.domain.errors import TransientError
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.await_job import await_job
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.record_events import record_batch
from tests.support.kubernetes_gateway_fixtures import CLUSTER_ID, RUN_ID
from tests.support.kubernetes_gateway_world import ClusterAddons, World, tables

TO_RUNNING = (
    RunPhase.PROVISIONING,
    RunPhase.VALIDATING,
    RunPhase.SUBMITTING,
    RunPhase.RUNNING,
)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A run that trains; nobody waits for it yet."""
    with tables(monkeypatch) as (settings, runs, clusters):
        world = World(settings, runs, clusters, ClusterAddons(None), None)
        world.begin(*TO_RUNNING)
        yield world


def batch_of(world: World, *events: Any, heartbeat: bool = False) -> RelayBatch:
    return RelayBatch(
        run_id=RUN_ID, batch_id="b", at=world.now(), events=list(events), heartbeat=heartbeat
    )


def failed(world: World) -> ev.TrainingReportedFailure:
    return ev.TrainingReportedFailure(
        event_id="failed", run_id=RUN_ID, at=world.now(), reason="it failed"
    )


def test_batch_delivered_again_ends_the_wait_that_the_first_delivery_did_not(world: Any):
    await_job(world, RUN_ID, task_token="token")
    batch = batch_of(world, failed(world))
    world.workflows.failure = TransientError("Step Functions is away")
    with pytest.raises(TransientError):
        record_batch(world, batch)
    world.workflows.failure = None

    record_batch(world, batch)
    record_batch(world, batch)

    assert world.workflows.said == [("TrainingFailed", "it failed")] * 2
    assert len(world.events("training.failed")) == 1


def test_job_that_failed_before_the_wait_ends_it_as_it_begins(world: Any):
    record_batch(world, batch_of(world, failed(world), heartbeat=True))
    assert world.workflows.said == [], "nobody waits yet"

    await_job(world, RUN_ID, task_token="token")

    assert world.workflows.said == [("TrainingFailed", "it failed")]


def test_wait_that_begins_after_the_run_has_ended_ends_at_once(world: Any):
    begin_teardown(world, CLUSTER_ID)
    assert world.runs.load(RUN_ID).phase is RunPhase.FAILED

    await_job(world, RUN_ID, task_token="token")

    assert world.workflows.said == [("RunStopped", "its teardown was started before it had ended")]


def test_stop_ends_the_wait_and_a_second_one_too(world: Any):
    await_job(world, RUN_ID, task_token="token")

    for user_id in ("U7", "U8"):
        commands.stop_run(world, RUN_ID, channel_id="C1", user_id=user_id)

    assert world.workflows.said == [("RunStopped", "stopped by U7")] * 2


def test_late_batch_of_a_run_that_has_ended_settles_nothing(world: Any):
    await_job(world, RUN_ID, task_token="token")
    world.runs.record(
        RUN_ID,
        [
            ev.PhaseChanged(
                event_id="end", run_id=RUN_ID, at=world.now(), phase=RunPhase.FAILED, reason="r"
            )
        ],
    )

    record_batch(world, batch_of(world, failed(world), heartbeat=True))

    assert world.workflows.said == []
