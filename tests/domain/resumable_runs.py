"""A channel with a run that can be resumed."""

from __future__ import annotations

from stationmaster.domain.commands.resuming import SavedRun
from stationmaster.domain.errors import (
    RunNotFound,
)
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import FileHasher, ResultManifest
from stationmaster.domain.run.request import Placement
from tests.support.factories import make_request

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


def described(path: str):
    hasher = FileHasher(part_bytes=8)
    hasher.update(b"twelve bytes")
    return hasher.result(path)


def saved(run_id=RUN, *, files=FILES, step=STEP, nodes=2, **request) -> SavedRun:
    """A run of tiny-llama on two nodes that has trained all of its 60 steps."""
    manifest = ResultManifest(
        run_id=run_id,
        recipe="tiny-llama",
        nodes=nodes,
        instance_type="m5.2xlarge",
        outcome="succeeded",
        checkpoint_source=f"tiny-llama-0123456789ab/step-{step:08d}" if step else "",
        files=tuple(described(path) for path in files),
    )
    return SavedRun(
        run_id,
        make_request(**{"overrides": CONSTANT, **request}),
        Placement(nodes=nodes, instance_type="m5.2xlarge"),
        manifest,
    )


def channel(*runs: SavedRun):
    """Finds these runs; the first is the newest."""

    def find(label: str) -> SavedRun:
        for run in runs:
            if label in ("last", run.run_id):
                return run
        raise RunNotFound(f'no run is called "{label}" in this channel')

    return find
