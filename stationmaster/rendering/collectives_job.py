"""The job that measures collectives on a cluster's nodes before anything trains there.

Different from training is NCCL's log, which names the transport at the level INFO only.
"""

from __future__ import annotations

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.ids import ClusterId
from stationmaster.rendering.check_job import render_check_job
from stationmaster.rendering.job_backends import JobBackend
from stationmaster.rendering.job_spec import KubernetesObject


def render_collectives_job(
    cluster_id: ClusterId,
    spec: ClusterSpec,
    *,
    backend: JobBackend,
    check: str,
    name: str,
    nodes: int,
    image: str,
    is_full: bool,
) -> list[KubernetesObject]:
    """Make the job `name` on `nodes` nodes: with single nodes first, and pairs if full."""
    return render_check_job(
        cluster_id,
        spec,
        backend=backend,
        check=check,
        name=name,
        nodes=nodes,
        image=image,
        program=(
            *("torchrun", "-m", "training.collectives", "--alone"),
            *(["--pairs"] if is_full else []),
        ),
        environment={"NCCL_DEBUG": "INFO"},
        without=["NCCL_DEBUG_SUBSYS"],  # kept short where a run takes days
    )
