"""The training jobs of checks: programs on a cluster's nodes, before anything trains there.

They have the image, launcher, devices and environment of training, so what they find is what
training gets; their programs and labels differ, and nothing is started again after a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.planning.layout import processes_per_node
from stationmaster.rendering.environment import SCRATCH_MOUNT
from stationmaster.rendering.job_backends import JobBackend
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, CheckJob, JobSpec, KubernetesObject
from stationmaster.rendering.metadata import LABEL_CHECK, cluster_labels

SMOKE_STEPS: Final = 6
_SMOKE_DIRECTORY: Final = f"{RUNS_DIRECTORY}/.training-check"
_SAMPLES_OF_RANK: Final = 2
# Far above what a small model's first step takes, and below the time of a check.
_SLOW_S: Final = 300
# Rendered like these, which start a process on each GPU, or one on each node without.
_ON_GPUS: Final = CATALOGUE["llama2-7b"]
_ON_CPUS: Final = CATALOGUE["tiny-llama"]
# Rendezvous of pods whose nodes pull the image at different speeds, and the work.
_DEADLINE_S: Final = 1800


@dataclass(frozen=True)
class CheckProgram:
    """What each pod runs, and its variables that are not those of training."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that differ from those of training, or are added."""
    without: tuple[str, ...] = ()
    """Variables of training that are left out."""


def collectives(*, is_full: bool) -> CheckProgram:
    """Measure collectives on all nodes: with single nodes first, and pairs if full."""
    return CheckProgram(
        words=(
            *("torchrun", "-m", "training.collectives", "--alone"),
            *(["--pairs"] if is_full else []),
        ),
        # NCCL's log names the transport at this level only.
        environment={"NCCL_DEBUG": "INFO"},
        without=("NCCL_DEBUG_SUBSYS",),  # kept short where a run takes days
    )


def smoke(spec: ClusterSpec, *, name: str, nodes: int, recipe: str) -> CheckProgram:
    """Train a few steps of a recipe of the catalogue, small.

    It writes to a directory of its own beside those of runs, and deletes it.
    """
    settings = {
        PRESET: SMOKE,
        "steps": SMOKE_STEPS,
        "log_every": 1,
        "checkpoint_every": SMOKE_STEPS,
        "eval_every": 0,
        "global_batch_size": _SAMPLES_OF_RANK * nodes * processes_on_node(spec),
    }
    return CheckProgram(
        words=(
            *("torchrun", "-m", "training.smoke", recipe),
            *(f"{key}={value}" for key, value in settings.items()),
            *("--watchdog-slow", str(_SLOW_S)),
            *("--output-dir", f"{_SMOKE_DIRECTORY}/{name}"),
        ),
        # Prepared data go with the pods; runs on GPUs keep theirs on the file system.
        environment={"STATIONMASTER_CACHE_DIR": f"{SCRATCH_MOUNT}/cache"} if spec.num_gpus else {},
    )


def processes_on_node(spec: ClusterSpec) -> int:
    """Return how many processes the job starts on each node."""
    return processes_per_node(_ON_GPUS if spec.num_gpus else _ON_CPUS, spec.instance)


def render_check_job(
    cluster_id: ClusterId,
    spec: ClusterSpec,
    program: CheckProgram,
    *,
    backend: JobBackend,
    check: str,
    name: str,
    nodes: int,
    image: str,
) -> list[KubernetesObject]:
    """Return the job `name` of a check on `nodes` nodes of a cluster, in the image of training.

    The name has to be short enough for the names of its pods to be labels.
    """
    return backend.render(
        JobSpec(
            run_id=RunId(cluster_id),
            cluster_id=cluster_id,
            job=name,
            rendezvous_id=name,
            recipe=_ON_GPUS if spec.num_gpus else _ON_CPUS,
            overrides={},
            instance=spec.instance,
            nodes=nodes,
            image=image,
            program=program.words,
            check=CheckJob(
                labels=cluster_labels(cluster_id, "check") | {LABEL_CHECK: check},
                deadline_s=_DEADLINE_S,
                environment=program.environment,
                without=program.without,
            ),
        )
    )
