"""Executions that are killed in each state: of a run that has its own cluster, of clusters, of
teardowns.

Each run ends and says why, what had trained is saved, and nothing is left. For runs on a cluster
that stays see test_workflow_kept_cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.sweeps.foreign import in_account
from bench.sweeps.moments import MOMENTS, Moment, reach
from bench.sweeps.rules import Fault
from bench.sweeps.states import CLUSTER_TASKS, TEARDOWN_TASKS
from bench.sweeps.world import World
from stationmaster.cluster_upkeep import begin_pass
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.leftovers import find_left

KILLED = "the workflow was stopped from outside"


@pytest.fixture(scope="module", autouse=True)
def empty_account(world: World) -> Iterator[None]:
    """What the account has at the end is what it had before."""
    before = in_account(world.aws)
    yield
    assert in_account(world.aws) == before


def of_cluster(state: str) -> dict[str, str]:
    """How a call of a cluster's or a teardown's state is told from others of its function."""
    task = {**CLUSTER_TASKS, **TEARDOWN_TASKS}[state]
    return {"without": task.without, "only": dict(task.only)}


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.state)
def test_run_whose_workflow_is_killed_ends_with_its_reason_and_leaves_nothing(
    world: World, moment: Moment
) -> None:
    run_id, held = reach(world, f"own killed in {moment.state}", moment)

    world.kill(run_id)
    held.released.set()

    if moment.state == "PrepareRun":  # it came to no cluster
        run = world.until_out(run_id)
    else:
        run = world.until_rested(run_id, torn_down=True)
    assert run.phase is moment.ends
    assert (run.results is not None) is moment.has_trained
    if run.phase is RunPhase.FAILED:
        assert run.reason.startswith("the loss" if moment.plan == "fails" else KILLED)
    assert find_left(world.services, run_id) == []


@pytest.mark.parametrize("state", CLUSTER_TASKS)
def test_kept_cluster_whose_workflow_is_killed_fails_the_run_that_waits_and_goes(
    world: World, state: str
) -> None:
    held = []
    lab = world.create_cluster(
        f"k-{state}".lower(),
        before=lambda cluster_id: held.append(
            world.runtime.hold(cluster_id, CLUSTER_TASKS[state].function, **of_cluster(state))
        ),
    )
    world.until(held[0].reached.is_set, f"{state} is called")
    run_id = world.request(f"waits in {state}", cluster_id=lab.cluster_id)
    clusters = world.services.cluster_states
    world.until(lambda: clusters.load(lab.cluster_id).open_leases, "the run has its lease")

    world.kill(lab.cluster_id, "cluster")
    held[0].released.set()

    run = world.until_out(run_id)
    gone = world.until_gone(lab.cluster_id)
    assert run.phase is RunPhase.FAILED
    assert run.reason.startswith(KILLED)
    assert (gone.reason, gone.billable_left) == (run.reason, [])
    assert find_left(world.services, lab.cluster_id) == []


@pytest.mark.parametrize(
    ("nodes", "state"),
    [(3, "EnsureTrainingNodes"), (3, "ConcludeCluster"), (2, "RunCheck")],
    ids=["resize", "end of a resize", "validate"],
)
def test_pass_that_is_killed_leaves_the_run_on_its_cluster_alone(
    world: World, nodes: int, state: str
) -> None:
    lab = world.create_cluster(f"kp-{nodes}-{state}".lower(), nodes=2)
    world.until_ready(lab.cluster_id)
    name = f"trains in {state} of {nodes}"
    run_id = world.request(name, plan="waits", cluster_id=lab.cluster_id)
    world.until_awaiting(run_id)
    clusters = world.services.cluster_states
    held = world.runtime.hold(lab.cluster_id, CLUSTER_TASKS[state].function, **of_cluster(state))
    begin_pass(world.services, clusters.load(lab.cluster_id), nodes=nodes)
    world.until(held.reached.is_set, "the pass is under way")

    world.kill(f"{lab.cluster_id}-2", "cluster")

    if nodes == 2:  # what was to be proven is not: nobody else gets nodes of it
        world.until(
            lambda: clusters.load(lab.cluster_id).phase is ClusterPhase.FAILED, "it has failed"
        )
        held.released.set()
    else:
        world.until(lambda: clusters.load(lab.cluster_id).resize_failure, "it goes back")
        held.released.set()
        world.until_ready(lab.cluster_id)
        assert clusters.load(lab.cluster_id).spec.nodes == 2
        assert KILLED in clusters.load(lab.cluster_id).resize_failure
    world.let_end(run_id)
    assert world.until_out(run_id).phase is RunPhase.SUCCEEDED
    if nodes != 2:
        world.delete_cluster(lab.cluster_id)
    assert world.until_gone(lab.cluster_id).billable_left == []


@pytest.mark.parametrize("state", TEARDOWN_TASKS)
def test_teardown_that_is_killed_is_reported_and_finished_by_the_reaper(
    world: World, state: str
) -> None:
    held, task = [], TEARDOWN_TASKS[state]
    run_id = world.request(
        f"torn down to {state}",
        Fault("install-plugin"),
        before=lambda run_id: held.append(
            world.runtime.hold(run_id, task.function, **of_cluster(state))
        ),
    )
    world.until(held[0].reached.is_set, f"{state} is called")

    world.kill(f"{run_id}-teardown-1", "teardown")
    clusters = world.services.cluster_states
    world.until(lambda: clusters.load(run_id).teardown is TeardownStatus.FAILED, "it is reported")
    held[0].released.set()
    reaped = world.reap()

    run = world.until_rested(run_id, torn_down=True)
    # The conclusion outlives its execution, and may have ended the teardown before the reaper came.
    assert run_id in reaped or state == "ConcludeTeardown"
    assert (run.phase, find_left(world.services, run_id)) == (RunPhase.FAILED, [])
    assert clusters.load(run_id).billable_left == []
    reasons = [event.reason for event in world.outcome(run_id).events_of("teardown.failed")]
    assert len(reasons) == 1
    assert reasons[0].startswith(KILLED)
