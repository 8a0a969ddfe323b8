"""The training job of a check: a program on a cluster's nodes, before anything trains there.

It has the image, launcher, devices and environment of training, so what it finds is what training
gets; its program and labels differ, and nothing is started again after a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.planning.layout import processes_per_node
from stationmaster.rendering.job_backends import JobBackend
from stationmaster.rendering.job_spec import CheckJob, JobSpec, KubernetesObject
from stationmaster.rendering.metadata import LABEL_CHECK, cluster_labels

# Rendered like these, which start a process on each GPU, or one on each node without.
_ON_GPUS: Final = CATALOGUE["llama2-7b"]
_ON_CPUS: Final = CATALOGUE["tiny-llama"]
# Rendezvous of pods whose nodes pull the image at different speeds, and the work.
_DEADLINE_S: Final = 1800


def processes_on_node(spec: ClusterSpec) -> int:
    """Return how many processes the job starts on each node."""
    return processes_per_node(_ON_GPUS if spec.num_gpus else _ON_CPUS, spec.instance)


def render_check_job(
    cluster_id: ClusterId,
    spec: ClusterSpec,
    *,
    backend: JobBackend,
    check: str,
    name: str,
    nodes: int,
    image: str,
    program: Sequence[str],
    environment: Mapping[str, str],
    without: Sequence[str] = (),
) -> list[KubernetesObject]:
    """Return the job called `name`, on `nodes` nodes.

    Args:
        cluster_id: whose nodes it runs on.
        spec: what these are.
        backend: the kind of jobs that run there.
        check: the check that it belongs to.
        name: short enough for the names of its pods to be labels.
        nodes: how many pods it has.
        image: that of training.
        program: what each pod runs.
        environment: variables that differ from those of training, or are added.
        without: variables of training that are left out.
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
            program=tuple(program),
            check=CheckJob(
                labels=cluster_labels(cluster_id, "check") | {LABEL_CHECK: check},
                deadline_s=_DEADLINE_S,
                environment=environment,
                without=tuple(without),
            ),
        )
    )
