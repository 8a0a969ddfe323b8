"""Runs on a kept cluster whose workflow is killed, or which people stop, in each of its states.

All are played on one cluster, one after the other: what a run leaves behind would be in the way
of the next one, and is looked for at the end. No reaper comes: each run leaves by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.sweeps.moments import AT_THE_END, BEFORE_THE_END, MOMENTS, Moment, reach
from bench.sweeps.world import World
from local.slack import OPERATOR_ID
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.names import LABEL_RUN_ID
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.leftovers import find_left

KILLED = "the workflow was stopped from outside"
NODES = 2


@pytest.fixture(scope="module")
def lab(world: World) -> Iterator[Cluster]:
    """A kept cluster that is ready, and as free at the end as it was."""
    made = world.create_cluster("lab", nodes=NODES)
    world.until_ready(made.cluster_id)
    yield made
    left = world.services.cluster_states.load(made.cluster_id)
    assert (left.phase, left.free_nodes, left.queue) == (ClusterPhase.READY, NODES, [])
    world.delete_cluster(made.cluster_id)
    gone = world.until_gone(made.cluster_id)
    assert (gone.billable_left, find_left(world.services, made.cluster_id)) == ([], [])


def until_nothing_of_it_is_left(world: World, lab: Cluster, run_id: str) -> None:
    """A step that was under way goes on for a moment, and takes back what it has made."""
    gateway = world.services.kubernetes(lab.cluster_id)
    of_run = {LABEL_RUN_ID: run_id}
    world.until(
        lambda: (
            not [
                *gateway.pods(labels=of_run),
                *gateway.batch_jobs(labels=of_run),
            ]
        ),
        f"nothing of {run_id} is in the cluster",
    )


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.state)
def test_run_whose_workflow_is_killed_ends_with_its_reason_and_leaves_the_cluster(
    world: World, lab: Cluster, moment: Moment
) -> None:
    run_id, held = reach(world, f"killed in {moment.state}", moment, cluster_id=lab.cluster_id)

    world.kill(run_id)
    held.released.set()

    run = world.until_out(run_id)
    assert run.phase is moment.ends
    assert (run.results is not None) is moment.has_trained
    if run.phase is RunPhase.FAILED:
        assert run.reason.startswith("the loss" if moment.plan == "fails" else KILLED)
    until_nothing_of_it_is_left(world, lab, run_id)


@pytest.mark.parametrize("moment", BEFORE_THE_END, ids=lambda moment: moment.state)
def test_run_that_is_stopped_ends_stopped_and_leaves_the_cluster(
    world: World, lab: Cluster, moment: Moment
) -> None:
    run_id, held = reach(world, f"stopped in {moment.state}", moment, cluster_id=lab.cluster_id)

    world.stop(run_id)
    held.released.set()

    run = world.until_out(run_id)
    assert (run.phase, run.stop_requested_by) == (RunPhase.STOPPED, OPERATOR_ID)
    assert (run.results is not None) is moment.has_trained
    until_nothing_of_it_is_left(world, lab, run_id)


@pytest.mark.parametrize("moment", AT_THE_END[1:], ids=lambda moment: moment.state)
def test_run_that_has_trained_is_not_stopped_any_more(
    world: World, lab: Cluster, moment: Moment
) -> None:
    run_id, held = reach(world, f"too late in {moment.state}", moment, cluster_id=lab.cluster_id)

    with pytest.raises(NotPossibleNow, match=r"trains no more|has ended already"):
        world.stop(run_id)
    held.released.set()

    run = world.until_out(run_id)
    assert (run.phase, run.stop_requested_by) == (RunPhase.SUCCEEDED, None)


def test_run_that_is_stopped_in_the_queue_leaves_it_to_the_next(world: World, lab: Cluster) -> None:
    on, runs = {"cluster_id": lab.cluster_id}, world.services.runs
    user = world.request("before the queue", plan="waits", nodes=NODES, **on)
    world.until_awaiting(user)
    first = world.request("first of the queue", nodes=NODES, **on)
    world.until(lambda: runs.load(first).phase is RunPhase.QUEUED, "the first waits")
    second = world.request("second of the queue", nodes=1, **on)
    world.until(lambda: runs.load(second).phase is RunPhase.QUEUED, "the second waits")

    world.stop(first)

    assert world.until_out(first).phase is RunPhase.STOPPED
    assert runs.load(user).phase is RunPhase.RUNNING
    assert runs.load(second).phase is RunPhase.QUEUED
    world.let_end(user)
    assert [world.until_out(each).phase for each in (user, second)] == [RunPhase.SUCCEEDED] * 2
    assert "provisioning" not in runs.load(second).phase_names
