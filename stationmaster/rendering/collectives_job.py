"""The PyTorchJob that measures collectives on a cluster's nodes before anything trains there.

It is rendered as a training job is: the same image, launcher, devices and environment, so what it
measures is what training gets. Different are its program, its labels, NCCL's log, which names the
transport at the level INFO only, and that nothing is started again after a failure.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.rendering.job_spec import JobSpec, KubernetesObject
from stationmaster.rendering.metadata import LABEL_CHECK, cluster_labels
from stationmaster.rendering.pytorch_job import render_pytorch_job

# Rendered like these, which start a process on each GPU, or one on each node without.
_ON_GPUS: Final = CATALOGUE["llama2-7b"]
_ON_CPUS: Final = CATALOGUE["tiny-llama"]
# Rendezvous of pods whose nodes pull the image at different speeds, and the measurement.
_DEADLINE_S: Final = 1800


def render_collectives_job(
    cluster_id: ClusterId,
    spec: ClusterSpec,
    *,
    check: str,
    name: str,
    nodes: int,
    image: str,
    is_full: bool,
) -> KubernetesObject:
    """The job called `name`, on `nodes` nodes; with single nodes first, and with pairs if full."""
    job = render_pytorch_job(
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
            program=(
                *("torchrun", "-m", "training.collectives", "--alone"),
                *(["--pairs"] if is_full else []),
            ),
        )
    )
    labels = cluster_labels(cluster_id, "check") | {LABEL_CHECK: check}
    job["metadata"]["labels"] = labels
    policy, elastic = job["spec"]["runPolicy"], job["spec"]["elasticPolicy"]
    policy |= {"backoffLimit": 1, "activeDeadlineSeconds": _DEADLINE_S}
    elastic["maxRestarts"] = 0
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        replica["restartPolicy"] = "Never"
        replica["template"]["metadata"]["labels"] = labels
        [container] = replica["template"]["spec"]["containers"]
        container["env"] = _environment(container["env"])
    return job


def _environment(of_training: list[KubernetesObject]) -> list[KubernetesObject]:
    """That of training, with NCCL's log and the name that people know the node by."""
    of_nccls_log = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")  # kept short where a run takes days
    kept = [each for each in of_training if each["name"] not in of_nccls_log]
    return [
        *kept,
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
