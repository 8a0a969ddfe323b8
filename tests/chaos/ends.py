"""Steps and verdicts that the plays of kills share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.cluster_upkeep import begin_pass
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.names import LABEL_RUN_ID
from stationmaster.domain.run.aggregate import Run
from tests.chaos.moments import Moment
from tests.chaos.points import Verdict
from tests.chaos.rules import Hold
from tests.chaos.scene import NODES, Place, Scene, short
from tests.chaos.states import CLUSTER_TASKS, TEARDOWN_TASKS
from tests.chaos.watched import AnId
from tests.chaos.world import World

# The functions that make, read or delete the run's job; no other knows of which kind it is.
_WITH_JOBS: Final = (
    "submit-job",
    "ensure-job-started",
    "await-job",
    "save-results",
    "leave-unsaved",
)


def moments_in(place: Place, moments: Sequence[Moment]) -> list[Moment]:
    """Those of the moments that are points in a place: with TrainJobs, where a job is met."""
    return [each for each in moments if place is not Place.TRAINER or each.function in _WITH_JOBS]


def expect_results(verdict: Verdict, run: Run, moment: Moment) -> None:
    is_saved = run.results is not None
    verdict.expect(is_saved is moment.has_trained, f"what it trained is saved: {is_saved}")


def ended(
    scene: Scene, place: Place, run_id: AnId, verdict: Verdict, *, never_there: bool = False
) -> Run:
    """The run once it has ended by itself, and what is left of it noted."""
    world = scene.world
    if place is Place.KEPT:
        run = world.until_out(run_id)
        _until_out_of_cluster(scene, run_id)
        assert run.request.cluster_id is not None
        lab = world.services.cluster_states.load(run.request.cluster_id)
        is_free = (lab.phase, lab.free_nodes, lab.queue) == (ClusterPhase.READY, NODES, [])
        verdict.expect(is_free, f"the kept cluster is {lab.phase} with {lab.free_nodes} free nodes")
        return run
    run = world.until_out(run_id) if never_there else world.until_rested(run_id, torn_down=True)
    verdict.orphans += scene.left_of(run_id)
    return run


def _until_out_of_cluster(scene: Scene, run_id: AnId) -> None:
    """A step that was under way goes on for a moment, and takes back what it has made."""
    gateway = scene.world.services.kubernetes(scene.lab.cluster_id)
    of_run = {LABEL_RUN_ID: run_id}
    scene.world.until(
        lambda: not [*gateway.pods(labels=of_run), *gateway.batch_jobs(labels=of_run)],
        f"nothing of {run_id} is in the cluster",
    )


def expect_gone(scene: Scene, verdict: Verdict, gone: Cluster) -> None:
    verdict.orphans += scene.left_of(gone.cluster_id)
    verdict.expect(gone.billable_left == [], f"its record says that {gone.billable_left} is left")
    verdict.expect(not gone.is_wanted, "it is wanted still")


def in_pass(nodes: int, state: str, scene: Scene, name: str) -> tuple[Cluster, AnId, Hold]:
    """A kept cluster in a pass that is held in a state, and a run that trains on it meanwhile."""
    world = scene.world
    lab = world.create_cluster(short(name), nodes=NODES)
    world.until_ready(lab.cluster_id)
    run_id = world.request(name, plan="waits", cluster_id=lab.cluster_id)
    world.until_awaiting(run_id)
    clusters = world.services.cluster_states
    held = hold_in_state(world, lab.cluster_id, state)
    begin_pass(world.services, clusters.load(lab.cluster_id), nodes=nodes)
    world.until(held.reached.is_set, f"the pass is in {state}")
    return lab, run_id, held


def hold_in_state(
    world: World, owner: AnId, state: str, *, guest: bool = False, after: bool = False
) -> Hold:
    """Hold the next call of a cluster's or a teardown's state, before its function or after it."""
    task = {**CLUSTER_TASKS, **TEARDOWN_TASKS}[state]
    only = dict(task.only)
    if guest:  # what a guest installs and checks is less
        only = {key: value for key, value in only.items() if key == "node_group"}
    return world.runtime.hold(owner, task.function, without=task.without, only=only, after=after)
