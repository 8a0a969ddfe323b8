"""The job that trains a few steps of a small model before a run trains.

A recipe's preset `smoke` on the nodes and devices of a run. It writes to a directory of its own
beside those of runs, and deletes it.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.recipes import PRESET, SMOKE
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.ids import ClusterId
from stationmaster.rendering.check_job import processes_on_node, render_check_job
from stationmaster.rendering.environment import SCRATCH_MOUNT
from stationmaster.rendering.job_backends import JobBackend
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject

STEPS: Final = 6
_DIRECTORY: Final = f"{RUNS_DIRECTORY}/.training-check"
_SAMPLES_OF_RANK: Final = 2
# Far above what a small model's first step takes, and below the time of a check.
_SLOW_S: Final = 300


def render_smoke_job(
    cluster_id: ClusterId,
    spec: ClusterSpec,
    *,
    backend: JobBackend,
    check: str,
    name: str,
    nodes: int,
    image: str,
    recipe: str,
) -> list[KubernetesObject]:
    """Return the job called `name`, on `nodes` nodes; `recipe` is one of the catalogue."""
    settings = {
        PRESET: SMOKE,
        "steps": STEPS,
        "log_every": 1,
        "checkpoint_every": STEPS,
        "eval_every": 0,
        "global_batch_size": _SAMPLES_OF_RANK * nodes * processes_on_node(spec),
    }
    return render_check_job(
        cluster_id,
        spec,
        backend=backend,
        check=check,
        name=name,
        nodes=nodes,
        image=image,
        program=(
            *("torchrun", "-m", "training.smoke", recipe),
            *(f"{key}={value}" for key, value in settings.items()),
            *("--watchdog-slow", str(_SLOW_S)),
            *("--output-dir", f"{_DIRECTORY}/{name}"),
        ),
        # Prepared data go with the pods; runs on GPUs keep theirs on the file system.
        environment={"STATIONMASTER_CACHE_DIR": f"{SCRATCH_MOUNT}/cache"} if spec.num_gpus else {},
    )
