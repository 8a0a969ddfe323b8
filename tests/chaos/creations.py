"""Creations that are held in flight: decided on and recorded, not yet sent, while everything ends.

Each is let go at once, or when the teardown is over or waits for it. It may then land where nobody
looks any more; a pass of the reaper is the last that may find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.run.events import RunPhase
from tests.chaos.points import Verdict
from tests.chaos.scene import Named, Place, Scene
from tests.chaos.watched import AnId
from tests.chaos.world import run_id_of

_REAPER_PASSES: Final = 3


@dataclass(frozen=True)
class Creation:
    """A call that creates, and the workflow that makes it."""

    machine: str
    call: str
    function: str
    """Which the call is of, where several make it."""

    def __str__(self) -> str:
        return f"{self.call} of {self.function}"


_OF_CLUSTERS: Final = (
    ("ec2.CreateSecurityGroup", "ensure-cluster"),
    ("ec2.AuthorizeSecurityGroupIngress", "ensure-cluster"),
    ("eks.CreateCluster", "ensure-cluster"),
    ("eks.CreateAccessEntry", "ensure-cluster"),
    ("eks.AssociateAccessPolicy", "ensure-cluster"),
    ("ec2.CreateLaunchTemplate", "ensure-node-group"),
    ("eks.CreateNodegroup", "ensure-node-group"),
    ("fsx.CreateFileSystem", "ensure-file-system"),
    ("eks.CreateAddon", "install-plugin"),
    ("eks.CreatePodIdentityAssociation", "ensure-cluster"),
    ("kubernetes.PATCH jobs", "run-check"),
)
_OF_RUNS: Final = (
    ("stepfunctions.StartExecution", "acquire-cluster"),
    ("kubernetes.PATCH persistentvolumes", "submit-job"),
    ("kubernetes.PATCH pytorchjobs", "submit-job"),
)
_OF_GUESTS: Final = (
    ("cluster", "eks.CreatePodIdentityAssociation", "ensure-cluster"),
    ("cluster", "kubernetes.PATCH namespaces", "ensure-cluster"),
    ("cluster", "kubernetes.PATCH clusterroles", "install-plugin"),
    ("cluster", "kubernetes.PATCH persistentvolumes", "run-check"),
    ("train", "kubernetes.PATCH persistentvolumes", "submit-job"),
    ("train", "kubernetes.PATCH pytorchjobs", "submit-job"),
    ("train", "kubernetes.PATCH jobs", "save-results"),
)
_OF_TRAIN_JOBS: Final = (
    ("train", "kubernetes.PATCH trainingruntimes", "submit-job"),
    ("train", "kubernetes.PATCH trainjobs", "submit-job"),
)
# A run that is being saved cannot be stopped; a stop waits for what calls for a cluster.
_NEVER: Final = frozenset(
    {
        ("save-results", "stop", False),
        ("save-results", "stop", True),
        ("acquire-cluster", "stop", True),
    }
)
CORE: Final = frozenset(
    {
        "own: fsx.CreateFileSystem of ensure-file-system is held while cluster is killed"
        ", until its teardown is done",
        "own: eks.CreateNodegroup of ensure-node-group is held while cluster is killed"
        ", until its teardown is done",
        "existing: kubernetes.PATCH clusterroles of install-plugin is held while cluster is killed"
        ", until its teardown is done",
    }
)


def points() -> Iterator[Named]:
    """Group, name, place and play of each."""
    made = [(Place.OWN, Creation("cluster", *each)) for each in _OF_CLUSTERS]
    made += [(Place.OWN, Creation("train", *each)) for each in _OF_RUNS]
    made += [(Place.EXISTING, Creation(*each)) for each in _OF_GUESTS]
    made += [(Place.TRAINER, Creation(*each)) for each in _OF_TRAIN_JOBS]
    for place, creation in made:
        ends = ("train", "cluster", "stop") if creation.machine == "cluster" else ("train", "stop")
        for end in ends:
            how = "it is stopped" if end == "stop" else f"{end} is killed"
            for late in (False, True):
                if (creation.function, end, late) in _NEVER:
                    continue
                until = ", until its teardown is done" if late else ""
                yield (
                    f"creation {creation}",
                    f"{place}: {creation} is held while {how}{until}",
                    place,
                    partial(_hold_creation, place, creation, end, late),
                )


def _hold_creation(
    place: Place, creation: Creation, end: str, late: bool, scene: Scene, name: str
) -> Verdict:
    world, verdict = scene.world, Verdict()
    held = world.runtime.hold(run_id_of(name), creation.call, inside=creation.function)
    run_id = world.request(name, **scene.shared(place))
    world.until(held.reached.is_set, f"{creation.call} is about to be sent")
    if end == "stop":
        world.stop(run_id)
    else:
        world.kill(run_id, end)
    if late:
        world.until(lambda: _is_over_or_waits(scene, run_id), "its teardown is over, or waits")
    held.released.set()

    _settle(scene, run_id)
    run = world.until_out(run_id)
    wanted = {RunPhase.STOPPED} if end == "stop" else {RunPhase.FAILED}
    if creation.function == "save-results":
        wanted = {RunPhase.SUCCEEDED}
    verdict.expect(run.phase in wanted, f"the run ended {run.phase}: {run.reason}")
    verdict.orphans += scene.left_of(run_id)
    return verdict


def _is_over_or_waits(scene: Scene, run_id: AnId) -> bool:
    """Whether the teardown has come to its end, or does not without what is in flight."""
    cluster = scene.world.services.cluster_states.find(run_id)
    if cluster is None:
        return scene.world.services.runs.load(run_id).phase.is_terminal
    calls = scene.world.runtime.num_calls
    waits = calls[run_id, "begin-teardown"] >= 5 or calls[run_id, "verify-released"] >= 5
    return waits or cluster.teardown in (TeardownStatus.COMPLETED, TeardownStatus.FAILED)


def _settle(scene: Scene, run_id: AnId) -> None:
    """Wait for all that moves, with the passes that the reaper makes meanwhile."""
    world = scene.world
    for _ in range(_REAPER_PASSES):
        world.until_still(run_id)
        world.aws.finish_lifecycles()
        cluster = world.services.cluster_states.find(run_id)
        torn_down = cluster is None or cluster.teardown is TeardownStatus.COMPLETED
        if torn_down and not scene.left_of(run_id):
            return
        world.reap()
    if cluster is not None:
        world.until_gone(run_id)
