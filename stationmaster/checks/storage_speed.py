"""The part of the storage check that measures the file system's speed, in full validations.

A second Job on each idle node runs `training.file_system_speed`, at the same time as the others.
The judgement is `stationmaster.diagnosis.file_system_speed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.checks.node_jobs import digest, look_at_jobs, render_node_job
from stationmaster.diagnosis.file_system_speed import Bought, Judged, Level, judge, read_speed
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.planning.cost import SCRATCH_MBPS_PER_TIB
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import container_security
from stationmaster.rendering.shared_volume import shared_mount, shared_volume

# Of each node, where the file system has room: more than a small one's servers have memory for.
_MAX_NODE_BYTES: Final = 10 << 30
# Of the whole file system, all nodes together.
_MAX_SHARE: Final = 0.02


def node_bytes(storage_gib: int, num_nodes: int) -> int:
    """Return how much each node writes: little of the file system, whatever its size."""
    return min(_MAX_NODE_BYTES, int(storage_gib * (1 << 30) * _MAX_SHARE / num_nodes))


def job_name(
    cluster_id: ClusterId, node: str, *, nodes: Sequence[str], pass_number: int = 1
) -> str:
    """Name a node's Job; other nodes or another execution make another name."""
    return f"{cluster_id}-sp-{digest([node, *sorted(nodes)], pass_number)}"


def render_jobs(
    cluster_id: ClusterId,
    *,
    check: str,
    hostnames: Sequence[str],
    opening: KubernetesObject,
    directory: str,
    image: str,
    storage_gib: int,
    pass_number: int = 1,
) -> list[KubernetesObject]:
    """Make a Job for each node.

    Args:
        check: the check that the Jobs belong to.
        hostnames: the nodes' kubernetes.io/hostname labels.
        opening: the container that makes `directory` and opens it.
        directory: where the nodes write.
        image: that of training.
        storage_gib: the size of the file system.
        pass_number: the number of the cluster workflow's execution.
    """
    nodes = sorted(hostnames)
    num_bytes = str(node_bytes(storage_gib, len(nodes)))
    program = ["python", "-m", "training.file_system_speed"]
    where = [directory, cluster_id, digest(nodes, pass_number)]
    return [
        render_node_job(
            cluster_id,
            check=check,
            name=job_name(cluster_id, hostname, nodes=nodes, pass_number=pass_number),
            hostname=hostname,
            pod={
                "initContainers": [opening],
                "containers": [
                    {
                        "name": "measure",
                        "image": image,
                        "command": [*program, *where, hostname, num_bytes, *nodes],
                        "resources": {
                            # Beside a check that asks for as much of the node as training: all
                            # nodes wait for each other, there and here.
                            "requests": {"cpu": "100m", "memory": "64Mi"},
                            # The page cache counts; the kernel gives it back when it needs to.
                            "limits": {"memory": "4Gi"},
                        },
                        "securityContext": container_security(),
                        "volumeMounts": [shared_mount()],
                    }
                ],
                "volumes": [shared_volume(cluster_id)],
            },
        )
        for hostname in nodes
    ]


def look(cluster: LiveCluster, *, check: str, hostnames: Sequence[str]) -> Finding:
    """Judge what the nodes measured; the sentence continues that of the check."""
    names = [
        job_name(cluster.cluster_id, hostname, nodes=hostnames, pass_number=cluster.passes)
        for hostname in hostnames
    ]
    pods, finding = look_at_jobs(cluster, check=check, names=names)
    if finding is not None:
        return finding
    lines = {name: cluster.kubernetes.end_line(pods[name].name) for name in names if name in pods}
    speeds = [speed for line in lines.values() if (speed := read_speed(line)) is not None]
    if len(speeds) < len(names):
        missing = next(name for name in names if read_speed(lines.get(name, "")) is None)
        return Finding(Verdict.BAD, f"the pod of Job {missing} printed no speed")
    return _finding(cluster, judge(speeds, _bought(cluster, len(hostnames))))


def _bought(cluster: LiveCluster, num_idle: int) -> Bought:
    spec, file_system = cluster.spec, cluster.spec.file_system
    is_theirs = bool(file_system.existing_id)
    # An existing one that names no throughput is planned with as if it were SCRATCH_2.
    is_unknown = bool(file_system.claim) or (
        is_theirs and file_system.mbps_per_tib == SCRATCH_MBPS_PER_TIB
    )
    return Bought(
        storage_gib=file_system.storage_gib,
        mbps_per_tib=None if is_unknown else file_system.mbps_per_tib,
        client_gbps=spec.instance.network_gbps,
        is_shared=is_theirs or num_idle < len(cluster.training_nodes),
    )


def _finding(cluster: LiveCluster, judged: Judged) -> Finding:
    verdict = Verdict.BAD if judged.level is Level.FAIL else Verdict.GOOD
    slow = {
        node.name: "it moves less than half of what others do to and from the file system"
        for node in cluster.idle_nodes
        if judged.slow_node == node.hostname
    }
    return Finding(verdict, judged.sentence, judged.figures, slow)
