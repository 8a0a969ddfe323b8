"""Where a sweep's points are played: a local mode, a kept cluster in it, and one of somebody else.

Each is made when the first point asks for it and serves all others of the same world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.job_kinds import JobKind
from stationmaster.local.slack.records import TRAINING_CHANNEL_ID
from stationmaster.steps.parts.leftovers import find_left
from tests.chaos.foreign import in_account, make_foreign
from tests.chaos.owner import Owner
from tests.chaos.points import Point, Verdict
from tests.chaos.watched import AnId
from tests.chaos.world import LIMITS, World, open_world

NODES: Final = 2
_TTL_S: Final = 24 * 3600
# Ends a hang: one wait of a point. On a machine that does nothing else none takes a tenth of it.
WAIT_S: Final = 240.0
# What the workflows give up on, well before those who watch them do.
_LIMITS: Final = dict.fromkeys(LIMITS, WAIT_S / 2) | {
    # No pod is waited for, so a busy machine makes them no longer.
    "provision_timeout_s": WAIT_S / 12,
    "release_timeout_s": WAIT_S / 12,
}
OPERATIONS_CHANNEL_ID: Final = TRAINING_CHANNEL_ID  # the app is in no other
# Of a workflow. A run looks forty times at pods that start anyhow, which is half of what it costs.
LOOK_EVERY_S: Final = 0.3
# What tells one thing from another of its kind.
_NAMES: Final = {
    "clusters": "name",
    "file systems": "FileSystemId",
    "security groups": "GroupId",
    "launch templates": "LaunchTemplateName",
    "placement groups": "GroupName",
    "network interfaces": "NetworkInterfaceId",
    "clocks": "Name",
}


class Place(StrEnum):
    """What a run trains on."""

    OWN = "own"
    KEPT = "kept"
    EXISTING = "existing"
    TRAINER = "trainjob"
    """As `existing`, where the cluster's owner has Kubeflow Trainer: jobs are TrainJobs."""


# Places in the EKS cluster of somebody else, by what jobs are there.
GUESTS: Final[Mapping[Place, JobKind]] = {
    Place.EXISTING: JobKind.PYTORCH_JOB,
    Place.TRAINER: JobKind.TRAIN_JOB,
}


# Group, name, place and play of a point.
Named = tuple[str, str, Place, Callable[["Scene", str], Verdict]]


@dataclass
class Scene:
    """A world in which points are played one after the other."""

    world: World
    _labs: list[Cluster] = field(default_factory=list)
    _owners: list[Owner] = field(default_factory=list)

    @property
    def lab(self) -> Cluster:
        """A kept cluster that is ready and free; a new one where a point left it otherwise."""
        clusters = self.world.services.cluster_states
        if self._labs:
            now = clusters.load(self._labs[-1].cluster_id)
            if (now.phase, now.free_nodes, now.queue) == (ClusterPhase.READY, NODES, []):
                return now
        name = f"lab-{len(self._labs)}"
        made = self.world.create_cluster(name, nodes=NODES, ttl_s=_TTL_S)
        self.world.until_ready(made.cluster_id)
        self._labs.append(made)
        return made

    @property
    def owner(self) -> Owner:
        """Somebody with an EKS cluster."""
        if not self._owners:
            owner = Owner(self.world)
            owner.make()
            self._owners.append(owner)
        return self._owners[0]

    def shared(self, place: Place) -> dict[str, Any]:
        """What a request says of the cluster that its run is to use."""
        match place:
            case Place.OWN:
                return {}
            case Place.KEPT:
                return {"cluster_id": self.lab.cluster_id}
            case Place.EXISTING | Place.TRAINER:
                self.owner.serve(GUESTS[place])
                return self.owner.guest

    def empty_cluster(self) -> None:
        """Let the next run find Kubernetes as a new EKS cluster has it.

        One local cluster stands behind all of EKS, and the one of somebody else in the account
        never goes: it keeps what the plugins of earlier runs applied, and no run would apply it.
        """
        if not self._labs and not self._owners:
            self.world.mode.cluster.reset()

    def things(self) -> set[str]:
        """All that the account has which the product could have made, by kind and name."""
        found = in_account(self.world.aws)
        return {
            f"{kind} {each[name]}" for kind, name in _NAMES.items() for each in found.get(kind, [])
        }

    def left_of(self, cluster_id: AnId) -> list[str]:
        """What AWS itself lists of a cluster."""
        return [str(each) for each in find_left(self.world.services, cluster_id)]

    def mend(self, *owners: AnId) -> None:
        """Nothing of these is disturbed any more."""
        for owner in owners:
            self.world.runtime.mend_run(owner)
            self.world.runtime.let_go(owner)


def short(name: str) -> str:
    """A name for the cluster of a point: what a person may type is short."""
    return f"c{sha256(name.encode()).hexdigest()[:10]}"


def play_point(scene: Scene, point: Point) -> Verdict:
    """Play a point, and compare what the account has with what it had before."""
    scene.shared(Place(point.place))
    before = scene.things()
    try:
        verdict = point.play(scene, point.name)
    except TimeoutError as exc:
        verdict = Verdict(without_end=[str(exc)])
    finally:
        scene.world.runtime.rest()
    after = scene.things()
    if not verdict.orphans:  # else these are the same once more
        verdict.orphans += sorted(after - before)
    verdict.wrong += [f"{each} is somebody else's, and gone" for each in sorted(before - after)]
    return verdict


@contextmanager
def open_scene(directory: Path, **options: Any) -> Iterator[Scene]:
    """A started local mode with things of somebody else in its account."""
    options = {
        "limits": _LIMITS,
        "shortest_wait_s": LOOK_EVERY_S,
        "settings": {"operations_channel": OPERATIONS_CHANNEL_ID},
        **options,
    }
    with open_world(directory, **options) as world:
        world.deadline_s = WAIT_S
        assert world.mode.settings is not None
        make_foreign(world.aws, world.mode.settings)
        yield Scene(world)
