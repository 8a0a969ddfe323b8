"""What people do in the middle of a run: they stop it, or delete the cluster under it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.slack.records import OPERATOR_ID
from tests.chaos.ends import ended, expect_gone, expect_results, in_pass, moments_in
from tests.chaos.moments import AT_THE_END, BEFORE_THE_END, Moment, reach
from tests.chaos.points import Verdict
from tests.chaos.scene import NODES, Named, Place, Scene, short
from tests.chaos.watched import AnId
from tests.chaos.world import cluster_id_of

_MAKING: Final = (
    *("prepare-cluster", "ensure-cluster", "ensure-file-system"),
    *("install-plugin", "run-check"),
)


def stops() -> Iterator[Named]:
    for place in Place:
        for moment in moments_in(place, BEFORE_THE_END):
            name = f"{place}: run is stopped in {moment.state}"
            yield f"stop in {moment.state}", name, place, partial(_stop_run, place, moment)


def deletions() -> Iterator[Named]:
    for moment in (*BEFORE_THE_END, *AT_THE_END):
        name = f"kept: cluster is deleted under a run in {moment.state}"
        play = partial(_delete_under_run, moment)
        yield f"deletion in {moment.state}", name, Place.OWN, play

    for function in _MAKING:
        name = f"kept: cluster is deleted in the making, at {function}"
        yield f"deletion at {function}", name, Place.OWN, partial(_delete_in_the_making, function)
    for nodes, state in ((NODES + 1, "EnsureTrainingNodes"), (NODES, "RunCheck")):
        name = f"kept: cluster is deleted in a pass to {nodes} nodes, in {state}"
        yield f"deletion in pass {state}", name, Place.OWN, partial(_delete_in_pass, nodes, state)


def _stop_run(place: Place, moment: Moment, scene: Scene, name: str) -> Verdict:
    world, verdict = scene.world, Verdict()
    run_id, held = reach(world, name, moment, **scene.shared(place))

    world.stop(run_id)
    held.released.set()

    run = ended(scene, place, run_id, verdict, never_there=moment.state == "PrepareRun")
    verdict.expect(run.phase is RunPhase.STOPPED, f"the run ended {run.phase}: {run.reason}")
    verdict.expect(run.stop_requested_by == OPERATOR_ID, "nobody knows who stopped it")
    expect_results(verdict, run, moment)
    return verdict


def _delete_under_run(moment: Moment, scene: Scene, name: str) -> Verdict:
    world, verdict = scene.world, Verdict()
    lab = world.create_cluster(short(name), nodes=NODES)
    world.until_ready(lab.cluster_id)
    run_id, held = reach(world, name, moment, cluster_id=lab.cluster_id)

    world.delete_cluster(lab.cluster_id)
    held.released.set()

    gone = world.until_gone(lab.cluster_id)
    run = world.until_out(run_id)
    expect_gone(scene, verdict, gone)
    verdict.expect(run.phase is moment.ends, f"the run ended {run.phase}, not {moment.ends}")
    expect_results(verdict, run, moment)
    if run.phase is RunPhase.FAILED:
        says = run.reason.startswith(f"cluster {lab.name} ")
        verdict.expect(says, f'its reason is "{run.reason}"')
    return verdict


def _delete_in_the_making(function: str, scene: Scene, name: str) -> Verdict:
    """A run leases all of it, another one waits."""
    world, verdict = scene.world, Verdict()
    held = world.runtime.hold(cluster_id_of(short(name)), function)
    lab = world.create_cluster(short(name))
    world.until(held.reached.is_set, f"{function} is called")
    clusters, both = world.services.cluster_states, list[AnId]()
    for each in ("leases", "waits"):
        both.append(world.request(f"{name}: {each}", nodes=4, cluster_id=lab.cluster_id))
        world.until(lambda: clusters.load(lab.cluster_id).waiting_runs == both, "it asks for nodes")

    world.delete_cluster(lab.cluster_id)
    held.released.set()

    expect_gone(scene, verdict, world.until_gone(lab.cluster_id))
    for run_id in both:
        run = world.until_out(run_id)
        _expect_deleted(verdict, lab, run)
        verdict.expect(run.results is None, "it saved what nobody trained")
    queued = world.services.runs.load(both[1]).phase_names[1]
    verdict.expect(queued == "queued", f"the second run did not wait: {queued}")
    return verdict


def _delete_in_pass(nodes: int, state: str, scene: Scene, name: str) -> Verdict:
    world, verdict = scene.world, Verdict()
    lab, run_id, held = in_pass(nodes, state, scene, name)

    world.delete_cluster(lab.cluster_id)
    held.released.set()

    expect_gone(scene, verdict, world.until_gone(lab.cluster_id))
    run = world.until_out(run_id)
    _expect_deleted(verdict, lab, run)
    verdict.expect(run.results is not None, "what it trained is lost")
    return verdict


def _expect_deleted(verdict: Verdict, lab: Cluster, run: Run) -> None:
    says = (RunPhase.FAILED, f"cluster {lab.name} was deleted by a person")
    verdict.expect((run.phase, run.reason) == says, f"the run ended {run.phase}: {run.reason}")
