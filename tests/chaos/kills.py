"""The matrix of kills: every state of the three workflows, stopped before and after its function.

Runs on a cluster of their own, on a kept one and as guests on one of somebody else; what people do
in the middle (stop, delete); and passes over a kept cluster. Each play says what is wrong in the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase, TeardownFailed
from stationmaster.domain.run.events import RunPhase
from tests.chaos import people
from tests.chaos.ends import ended, expect_gone, expect_results, hold_in_state, in_pass, moments_in
from tests.chaos.moments import MOMENTS, Moment, reach
from tests.chaos.points import Point, Verdict
from tests.chaos.rules import Fault, Hold
from tests.chaos.scene import GUESTS, NODES, Named, Place, Scene, short
from tests.chaos.states import CLUSTER_TASKS, TEARDOWN_TASKS
from tests.chaos.watched import AnId
from tests.chaos.world import cluster_id_of, run_id_of

KILLED: Final = "the workflow was stopped from outside"
# What a resize to three nodes and a validation of two are killed in.
_PASSES: Final = (
    *((NODES + 1, state) for state in CLUSTER_TASKS),
    *((NODES, state) for state in ("EnsureCluster", "RunCheck", "ConcludeCluster")),
)
# Of a guest's teardown, what deletes a job or sees that it is gone.
_WITH_JOBS: Final = ("ReleaseJob", "ReleaseCluster", "VerifyReleased", "ConcludeTeardown")
# A mistake here costs most: something is created, or nobody is left who would delete it.
_CORE: Final = frozenset(
    {
        "own: train AwaitJob is killed after its function",
        "own: cluster EnsureTrainingNodes is killed after its function",
        "kept: pass to 3 nodes is killed in EnsureTrainingNodes",
    }
)


def kills() -> list[Point]:
    """Every point, in the order in which a whole sweep plays them."""
    return [
        Point(group, name, place, play, is_core=name in _CORE)
        for group, name, place, play in (
            *_train_kills(),
            *people.stops(),
            *people.deletions(),
            *_cluster_kills(),
            *_pass_kills(),
            *_teardown_kills(),
        )
    ]


def _both(group: str, name: str, on: Place, play: Callable[..., Verdict]) -> Iterator[Named]:
    """A state that is killed before and after its function; `play` is told which by `after`."""
    for after in (False, True):
        when = "after" if after else "before"
        yield group, f"{name} is killed {when} its function", on, partial(play, after)


def _train_kills() -> Iterator[Named]:
    for place in Place:
        for moment in moments_in(place, MOMENTS):
            name = f"{place}: train {moment.state}"
            yield from _both(
                f"train {moment.state}", name, place, partial(_kill_run, place, moment)
            )


def _after(moment: Moment) -> Moment:
    """The job that a submission has submitted trains."""
    has_trained = moment.has_trained or moment.state == "SubmitJob"
    return replace(moment, after=True, has_trained=has_trained)


def _cluster_kills() -> Iterator[Named]:
    for place in (Place.OWN, Place.KEPT, Place.EXISTING):
        # A kept cluster of its own: nobody else's.
        on = Place.EXISTING if place is Place.EXISTING else Place.OWN
        for state in CLUSTER_TASKS:
            about, play = f"cluster {state}", partial(_kill_cluster, place, state)
            yield from _both(about, f"{place}: {about}", on, play)


def _pass_kills() -> Iterator[Named]:
    for nodes, state in _PASSES:
        name = f"kept: pass to {nodes} nodes is killed in {state}"
        yield f"pass {state}", name, Place.OWN, partial(_kill_pass, nodes, state)


def _teardown_kills() -> Iterator[Named]:
    for place in Place:
        on = place if place in GUESTS else Place.OWN
        for state in TEARDOWN_TASKS:
            if place is not Place.TRAINER or state in _WITH_JOBS:
                about, play = f"teardown {state}", partial(_kill_teardown, place, state)
                yield from _both(about, f"{place}: {about}", on, play)


def _kill_run(place: Place, moment: Moment, after: bool, scene: Scene, name: str) -> Verdict:
    world, verdict = scene.world, Verdict()
    moment = _after(moment) if after else moment
    run_id, held = reach(world, name, moment, **scene.shared(place))

    world.kill(run_id)
    held.released.set()

    unsaved = moment.state == "LeaveUnsaved" and moment.after
    if unsaved:  # it is known that nothing is saved; a person asks for it
        world.until(lambda: world.services.runs.load(run_id).unsaved_reason, "it is not saved")
        world.until_still(run_id)
        world.save_again(run_id)
    run = ended(scene, place, run_id, verdict, never_there=moment.state == "PrepareRun")
    verdict.expect(run.phase is moment.ends, f"the run ended {run.phase}, not {moment.ends}")
    expect_results(verdict, run, moment)
    if run.phase is RunPhase.FAILED:
        says = "the loss" if moment.plan == "fails" else KILLED
        verdict.expect(run.reason.startswith(says), f'its reason is "{run.reason}"')
    return verdict


def _kill_cluster(place: Place, state: str, after: bool, scene: Scene, name: str) -> Verdict:
    world, verdict = scene.world, Verdict()
    held = _hold(place, state, after, scene, name)
    if place is Place.KEPT:
        cluster_id: AnId = world.create_cluster(short(name)).cluster_id
        world.until(held.reached.is_set, f"{state} is called")
        run_id = world.request(name, cluster_id=cluster_id)
        clusters = world.services.cluster_states
        world.until(lambda: run_id in clusters.load(cluster_id).waiting_runs, "the run waits")
    else:
        run_id = cluster_id = world.request(name, **scene.shared(place))
        world.until(held.reached.is_set, f"{state} is called")

    world.kill(cluster_id, "cluster")
    held.released.set()

    if state == "ConcludeCluster" and after and place is Place.KEPT:
        # The cluster was ready already: its run trains, and a person deletes it.
        world.until_out(run_id)
        world.delete_cluster(cluster_id)
    gone = world.until_gone(cluster_id)
    run = world.until_out(run_id)
    expect_gone(scene, verdict, gone)
    ends = RunPhase.SUCCEEDED if state == "ConcludeCluster" and after else RunPhase.FAILED
    verdict.expect(run.phase is ends, f"the run ended {run.phase}, not {ends}")
    if run.phase is RunPhase.FAILED:
        verdict.expect(run.reason.startswith(KILLED), f'its reason is "{run.reason}"')
        verdict.expect(gone.reason == run.reason, f'the cluster says "{gone.reason}"')
    return verdict


def _hold(place: Place, state: str, after: bool, scene: Scene, name: str) -> Hold:
    """Hold a state of the cluster that the point of this name will make."""
    owner = cluster_id_of(short(name)) if place is Place.KEPT else run_id_of(name)
    return hold_in_state(scene.world, owner, state, guest=place in GUESTS, after=after)


def _kill_pass(nodes: int, state: str, scene: Scene, name: str) -> Verdict:
    world, verdict = scene.world, Verdict()
    made, run_id, held = in_pass(nodes, state, scene, name)
    lab: AnId = made.cluster_id
    clusters = world.services.cluster_states

    world.kill(f"{lab}-2", "cluster")

    is_resize = nodes != NODES
    if is_resize:
        world.until(lambda: clusters.load(lab).resize_failure, "it goes back")
        held.released.set()
        world.until_ready(lab)
        now = clusters.load(lab)
        verdict.expect(now.spec.nodes == NODES, f"it has {now.spec.nodes} nodes")
        verdict.expect(KILLED in now.resize_failure, f'it says "{now.resize_failure}"')
    else:  # what was to be proven is not: nobody else gets nodes of it
        world.until(lambda: clusters.load(lab).phase is ClusterPhase.FAILED, "it has failed")
        held.released.set()
    world.let_end(run_id)
    run = world.until_out(run_id)
    verdict.expect(run.phase is RunPhase.SUCCEEDED, f"the run ended {run.phase}: {run.reason}")
    if is_resize:
        world.delete_cluster(lab)
    expect_gone(scene, verdict, world.until_gone(lab))
    return verdict


def _kill_teardown(place: Place, state: str, after: bool, scene: Scene, name: str) -> Verdict:
    world, verdict = scene.world, Verdict()
    held = _hold(place, state, after, scene, name)
    # All that costs is there when a plugin fails; a job is there when it has trained.
    faults = [] if place is Place.TRAINER else [Fault("install-plugin")]
    if place is Place.KEPT:
        cluster_id: AnId = world.create_cluster(short(name), nodes=NODES).cluster_id
        world.until_ready(cluster_id)
        world.delete_cluster(cluster_id)
    else:
        cluster_id = world.request(name, *faults, **scene.shared(place))
    world.until(held.reached.is_set, f"{state} is called")

    world.kill(f"{cluster_id}-teardown-1", "teardown")
    clusters = world.services.cluster_states
    over = (TeardownStatus.FAILED, TeardownStatus.COMPLETED)
    world.until(lambda: clusters.load(cluster_id).teardown in over, "its end is reported")
    held.released.set()
    reaped = world.reap()

    gone = world.until_gone(cluster_id)
    expect_gone(scene, verdict, gone)
    # The conclusion outlives its execution, and may have ended the teardown before the reaper came.
    helped = cluster_id in reaped or state == "ConcludeTeardown"
    verdict.expect(helped, "the reaper did not help")
    if place is not Place.KEPT:
        run = world.until_out(cluster_id)
        ends = RunPhase.FAILED if faults else RunPhase.SUCCEEDED
        verdict.expect(run.phase is ends, f"the run ended {run.phase}, not {ends}")
    reasons = [
        each.reason for each in clusters.events(cluster_id) if isinstance(each, TeardownFailed)
    ]
    is_over = state == "ConcludeTeardown" and after
    says = _one_that_says_so(reasons) or (is_over and not reasons)
    verdict.expect(says, f"the reasons of its failure are {reasons}")
    return verdict


def _one_that_says_so(reasons: Sequence[str]) -> bool:
    return len(reasons) == 1 and reasons[0].startswith(KILLED)
