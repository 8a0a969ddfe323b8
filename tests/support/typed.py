"""What a person types and who answers its questions: a kept cluster, saved runs, a file system."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster import aggregate
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import ClusterSpec, FileSystemSpec, spec_for_any
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import ShowPlan
from stationmaster.domain.commands.resuming import saved_run
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.errors import ClusterNotFound, NotPossibleNow, RunNotFound, UserError
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.questions import (
    FindCluster,
    FindSaved,
    FoundFileSystem,
    OwnCodeRules,
    SavedRun,
)
from stationmaster.domain.results import FileHasher, ResultFile, ResultManifest
from stationmaster.domain.run.request import Placement
from tests.support.factories import START, make_cluster_event, make_request

REGISTRY = "registry.example.com/team"
RULES = OwnCodeRules(channel_id="C1", registries=(REGISTRY,), channels=("C1", "C2"))

FILE_SYSTEM = "fs-0123456789abcdef0"
# A SCRATCH_2 file system.
STORAGE = FileSystemSpec(storage_gib=4800, mbps_per_tib=200, existing_id=FILE_SYSTEM)

RUN = RunId("tiny-llama-0000aaaa")
STEP = 60
FILES = (
    "checkpoint/huggingface/config.json",
    f"checkpoint/step-{STEP:08d}/__0_0.distcp",
    f"checkpoint/step-{STEP:08d}/complete.json",
    "logs/pod.log",
    "model/model.safetensors",
)
CONSTANT = {"schedule": "constant", "steps": str(STEP)}


class Account:
    """Knows one file system and one EKS cluster, and what it was asked."""

    def __init__(self, *, free_gib: int | None = None) -> None:
        self.asked: list[str] = []
        self._free_gib = free_gib

    def find_file_system(self, file_system_id: str) -> FoundFileSystem:
        self.asked.append(file_system_id)
        if file_system_id != FILE_SYSTEM:
            raise NotPossibleNow(f"there is no file system {file_system_id}")
        return FoundFileSystem(spec=STORAGE, zone="us-west-2b", free_gib=self._free_gib)

    def find_eks_cluster(self, name: str) -> None:
        self.asked.append(name)
        if name != "theirs":
            raise NotPossibleNow(f"there is no EKS cluster {name}")

    def find_hyperpod_cluster(self, name: str) -> str:
        self.asked.append(f"hyperpod {name}")
        return "theirs"

    def find_hyperpod_price(self, instance_type: str) -> float | None:
        return {"m5.2xlarge": 0.46}.get(instance_type)


def parse(text: str, *, account: Account | None = None, **finders: object) -> object:
    """The command, where the account and the channel have what is above; without what is None."""
    account = account or Account()
    known = {
        "find_cluster": finding(kept()),
        "find_saved": channel(saved()),
        "find_file_system": account.find_file_system,
        "find_eks_cluster": account.find_eks_cluster,
        "find_hyperpod_cluster": account.find_hyperpod_cluster,
        "find_hyperpod_price": account.find_hyperpod_price,
        "own_code": RULES,
    }
    return parse_command(text, **(known | finders))


def start_of(text: str, **finders: object) -> StartRun:
    """The start, or that of the plan."""
    command = parse(text, **finders)
    start = command.request if isinstance(command, ShowPlan) else command
    assert isinstance(start, StartRun)
    return start


def refused(text: str, **finders: object) -> UserError:
    """The error that a text is answered with."""
    with pytest.raises(UserError) as caught:
        parse(text, **finders)
    return caught.value


def kept(spec: ClusterSpec | None = None, **values: object) -> Cluster:
    """A kept cluster that is ready and free: four m5.2xlarge unless told otherwise."""
    requested = make_cluster_event(
        cl.ClusterRequested,
        cluster_id="team-a-0a1b2c3d",
        spec=spec or spec_for_any(get_instance("m5.2xlarge"), nodes=4, file_system_gib=2400),
        name="team-a",
        requester=cl.Requester(team_id="T1", channel_id="C1", user_id="U1"),
        keep_until=START + timedelta(hours=8),
    )
    return aggregate.start(requested).model_copy(update={"phase": ClusterPhase.READY} | values)


def finding(cluster: Cluster) -> FindCluster:
    """Finds `cluster` by its name, and nothing else."""

    def find(label: str) -> Cluster:
        if label != cluster.label:
            raise ClusterNotFound(f'no kept cluster is called "{label}"')
        return cluster

    return find


def described(path: str) -> ResultFile:
    hasher = FileHasher(part_bytes=8)
    hasher.update(b"twelve bytes")
    return hasher.result(path)


def saved(
    run_id: RunId = RUN,
    *,
    files: tuple[str, ...] = FILES,
    step: int | None = STEP,
    nodes: int = 2,
    asked: int = 2,
    ran: tuple[str, ...] = (),
    **request: object,
) -> SavedRun:
    """A run of tiny-llama on two nodes that has trained all of its 60 steps.

    `ran` is what its program was where the recipe's trainer did not run.
    """
    manifest = ResultManifest(
        run_id=run_id,
        recipe="tiny-llama",
        nodes=nodes,
        instance_type="m5.2xlarge",
        outcome="succeeded",
        checkpoint_source=f"tiny-llama-0123456789ab/step-{step:08d}" if step else "",
        files=tuple(described(path) for path in files),
        program=ran,
    )
    placement = Placement(nodes=nodes, instance_type="m5.2xlarge")
    asked_for = make_request(**{"nodes": asked, "overrides": CONSTANT, **request})
    return saved_run(run_id, asked_for, placement, manifest)


def channel(*runs: SavedRun) -> FindSaved:
    """Finds these runs; the first is the newest."""

    def find(label: str) -> SavedRun:
        for run in runs:
            if label in ("last", run.run_id):
                return run
        raise RunNotFound(f'no run is called "{label}" in this channel')

    return find
