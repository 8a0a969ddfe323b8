"""What a run that waits for its cluster shows and hears of it, crashes between two writes included.

The store and the steps are real; Step Functions is played.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.run.aggregate import Wait
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.conclude_cluster import conclude_cluster
from stationmaster.steps.prepare_cluster import prepare_cluster
from tests.support.kubernetes_gateway_fixtures import CLUSTER_ID, RUN_ID
from tests.support.kubernetes_gateway_world import ClusterAddons, World, tables


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A run that waits for its cluster, which is provisioning; the run does not show it yet."""
    with tables(monkeypatch) as (settings, runs, clusters):
        world = World(settings, runs, clusters, ClusterAddons(None), None)
        world.begin()
        runs.save_task_token(RUN_ID, Wait.CLUSTER, "token")
        yield world


def test_step_that_is_repeated_mends_the_phase_that_a_crash_left_out_of_the_run(world: Any):
    assert world.runs.load(RUN_ID).phase is RunPhase.REQUESTED

    prepare_cluster(world, CLUSTER_ID)
    prepare_cluster(world, CLUSTER_ID)

    assert world.runs.load(RUN_ID).phase_names == ["requested", "provisioning"]
    assert len(world.events("run.phase_changed")) == 1


def test_cluster_that_failed_ends_the_wait_with_its_sentence_and_stays_failed(world: Any):
    conclude_cluster(world, CLUSTER_ID, error={"Error": "E", "Cause": "no capacity"})
    conclude_cluster(world, CLUSTER_ID)

    assert world.cluster_states.load(CLUSTER_ID).phase is ClusterPhase.FAILED
    assert world.workflows.said == [("ClusterFailed", "no capacity")] * 2


def test_cluster_that_is_ready_ends_the_wait_and_a_late_error_does_not_fail_it(world: Any):
    conclude_cluster(world, CLUSTER_ID)
    conclude_cluster(world, CLUSTER_ID, error={"Error": "E", "Cause": "the answer was lost"})

    assert world.cluster_states.load(CLUSTER_ID).phase is ClusterPhase.READY
    assert world.workflows.said == [("succeeded", "")] * 2
