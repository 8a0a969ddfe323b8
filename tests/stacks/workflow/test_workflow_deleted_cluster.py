"""Clusters that are deleted by a person in each state, whatever uses them or waits for them.

Every run ends with the true reason, what has trained is saved first, and nothing is left.
"""

from __future__ import annotations

import pytest

from bench.sweeps.moments import AT_THE_END, BEFORE_THE_END, Moment, reach
from bench.sweeps.rules import Fault
from bench.sweeps.world import World
from stationmaster import commands
from stationmaster.cluster_upkeep import begin_pass
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.leftovers import find_left


def gone(world: World, lab: Cluster, *runs: str) -> list[Run]:
    """The runs of a cluster of which nothing is left, once their workflows are over."""
    released = world.until_gone(lab.cluster_id)
    assert (released.billable_left, find_left(world.services, lab.cluster_id)) == ([], [])
    assert not released.is_wanted
    return [world.until_out(run_id) for run_id in runs]


def deleted(lab: Cluster) -> str:
    return f"cluster {lab.name} was deleted by a person"


@pytest.mark.parametrize(
    "function",
    ["prepare-cluster", "ensure-cluster", "ensure-file-system", "install-plugin", "run-check"],
)
def test_cluster_that_is_deleted_in_the_making_ends_the_runs_that_wait_for_it(
    world: World, function: str
) -> None:
    held, runs = [], world.services.runs
    lab = world.create_cluster(
        f"at-{function}"[:24].rstrip("-"),
        before=lambda cluster_id: held.append(world.runtime.hold(cluster_id, function)),
    )
    world.until(held[0].reached.is_set, f"{function} is called")
    both: list[str] = []
    clusters = world.services.cluster_states
    for name in (f"leases at {function}", f"waits at {function}"):
        both.append(world.request(name, nodes=4, cluster_id=lab.cluster_id))
        world.until(lambda: clusters.load(lab.cluster_id).waiting_runs == both, "it asks for nodes")

    world.delete_cluster(lab.cluster_id)
    held[0].released.set()

    for run in gone(world, lab, *both):
        assert (run.phase, run.reason, run.results) == (RunPhase.FAILED, deleted(lab), None)
    assert runs.load(both[1]).phase_names[1] == "queued"


@pytest.mark.parametrize("moment", [*BEFORE_THE_END, *AT_THE_END], ids=lambda each: each.state)
def test_cluster_that_is_deleted_under_a_run_saves_what_it_has_and_goes(
    world: World, moment: Moment
) -> None:
    lab = world.create_cluster(f"in-{moment.state}".lower(), nodes=2)
    world.until_ready(lab.cluster_id)
    run_id, held = reach(world, f"deleted in {moment.state}", moment, cluster_id=lab.cluster_id)

    world.delete_cluster(lab.cluster_id)
    held.released.set()

    (run,) = gone(world, lab, run_id)
    assert run.phase is moment.ends
    assert (run.results is not None) is moment.has_trained
    if run.phase is RunPhase.FAILED:
        assert run.reason.startswith(f"cluster {lab.name} ")


@pytest.mark.parametrize(
    ("nodes", "function"), [(3, "ensure-node-group"), (2, "run-check")], ids=["resize", "validate"]
)
def test_cluster_that_is_deleted_in_a_pass_ends_the_run_that_trains_on_it(
    world: World, nodes: int, function: str
) -> None:
    lab = world.create_cluster(f"pass-of-{nodes}", nodes=2)
    world.until_ready(lab.cluster_id)
    run_id = world.request(f"trains in pass {nodes}", plan="waits", cluster_id=lab.cluster_id)
    world.until_awaiting(run_id)
    held = world.runtime.hold(lab.cluster_id, function)
    begin_pass(world.services, world.services.cluster_states.load(lab.cluster_id), nodes=nodes)
    world.until(held.reached.is_set, "the pass is under way")

    world.delete_cluster(lab.cluster_id)
    held.released.set()

    (run,) = gone(world, lab, run_id)
    assert (run.phase, run.reason) == (RunPhase.FAILED, deleted(lab))
    assert run.results is not None


@pytest.mark.parametrize("saved", [True, False], ids=["saved at last", "given up"])
def test_cluster_that_is_deleted_with_unsaved_results_keeps_them_and_says_so(
    world: World, saved: bool
) -> None:
    lab = world.create_cluster(f"unsaved-{saved}".lower(), nodes=2)
    world.until_ready(lab.cluster_id)
    name = f"not saved at first {saved}"
    run_id = world.request(name, Fault("save-results"), cluster_id=lab.cluster_id)
    services = world.services
    world.until(lambda: services.runs.load(run_id).unsaved_reason, "saving gives up for now")
    assert services.cluster_states.load(lab.cluster_id).phase is ClusterPhase.READY

    world.delete_cluster(lab.cluster_id)

    clusters = services.cluster_states
    world.until(
        lambda: clusters.load(lab.cluster_id).teardown is TeardownStatus.FAILED, "it is held"
    )
    held = clusters.load(lab.cluster_id)
    assert held.teardown_reason.startswith(f"the results of run {run_id} are not saved: broken")
    there = [each.kind for each in held.resources.values() if each.deleted_at is None]
    assert {ResourceKind.FILE_SYSTEM, ResourceKind.CLUSTER} <= set(there)
    card = world.card(run_id, "tiny-llama: saving")
    assert "The results are not saved:* broken by the test" in card
    assert "an hour*" in card
    assert "are not saved: broken" in world.card(lab.cluster_id, f"cluster {lab.name}: teardown")
    assert services.runs.load(run_id).phase is RunPhase.SAVING
    world.runtime.mend_run(run_id)
    if saved:
        world.save_again(run_id)
    else:
        world.give_up(run_id)

    (run,) = gone(world, lab, run_id)
    assert (run.phase, run.results is not None) == (RunPhase.SUCCEEDED, saved)
    for again in (commands.save_again, commands.give_up_results):
        with pytest.raises(NotPossibleNow, match="not waiting to be saved"):
            again(services, run_id, channel_id=run.request.channel_id, user_id="U2")
