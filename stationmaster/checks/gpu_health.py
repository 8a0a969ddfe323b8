"""Whether the GPUs of every idle training node are healthy, by nvidia-smi and what a pod can see.

A node that advertises all of its GPUs may have one that is lost, has memory errors or is cut into
MIG devices. One pod a node asks for all GPUs and EFA interfaces, as training does, and prints what
it sees (`training.node_facts`); the judgement is `stationmaster.diagnosis.gpu_health`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.checks.node_jobs import digest, look_at_jobs, render_node_job
from stationmaster.diagnosis.gpu_health import Fault, Health, judge, read_facts
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.sizes import counted
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import (
    LABEL_HEALTH,
    TO_REPLACE,
    container_security,
    namespace,
)

NAME: Final = "gpu-health"


def applies(spec: ClusterSpec, *, is_full: bool) -> bool:
    """Say whether jobs ask for GPUs: it takes as long as a pod that starts."""
    return spec.num_gpus > 0


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make a Job for each idle node."""
    return [
        namespace(),
        *render_jobs(
            cluster.cluster_id,
            hostnames=[node.hostname for node in cluster.idle_nodes],
            image=cluster.services.settings.training_image,
            spec=cluster.spec,
            pass_number=cluster.passes,
        ),
    ]


def render_jobs(
    cluster_id: ClusterId,
    *,
    hostnames: Sequence[str],
    image: str,
    spec: ClusterSpec,
    pass_number: int = 1,
) -> list[KubernetesObject]:
    """Make a Job for each node; `hostnames` are the nodes' kubernetes.io/hostname labels."""
    devices = {"nvidia.com/gpu": str(spec.num_gpus)}
    if spec.num_efa:
        devices["vpc.amazonaws.com/efa"] = str(spec.num_efa)
    fixed = {"memory": "1Gi", **devices}
    container = {
        "name": "look",
        "image": image,
        "command": ["python", "-m", "training.node_facts"],
        "resources": {"requests": {"cpu": "100m", **fixed}, "limits": fixed},
        "securityContext": container_security(),
    }
    return [
        render_node_job(
            cluster_id,
            check=NAME,
            name=job_name(cluster_id, hostname, pass_number=pass_number),
            hostname=hostname,
            pod={"containers": [container]},
        )
        for hostname in sorted(hostnames)
    ]


def job_name(cluster_id: ClusterId, hostname: str, *, pass_number: int = 1) -> str:
    """Name a node's Job: short, a DNS label, and different in each execution."""
    return f"{cluster_id}-gh-{digest([hostname], pass_number)}"


def look(cluster: LiveCluster) -> Finding:
    """Judge what the pods of the present nodes have printed."""
    nodes = {
        job_name(cluster.cluster_id, node.hostname, pass_number=cluster.passes): node.name
        for node in cluster.idle_nodes
    }
    if not nodes:
        return Finding(Verdict.GOOD, "runs use the GPUs of all nodes", {"nodes": 0})
    pods, finding = look_at_jobs(cluster, check=NAME, names=[*nodes])
    if finding is not None:
        return finding
    gateway, spec = cluster.kubernetes, cluster.spec
    facts = {
        node: read_facts(gateway.end_line(pods[job].name)) if job in pods else None
        for job, node in nodes.items()
    }
    health = judge(facts, num_gpus=spec.num_gpus, num_efa=spec.num_efa)
    if health.faults:
        return _bad(cluster, health.faults, num_nodes=len(nodes))
    return _good(spec, health, num_nodes=len(nodes))


def _bad(cluster: LiveCluster, faults: Sequence[Fault], *, num_nodes: int) -> Finding:
    """Report the first fault with what to do; a broken node before what all have in common."""
    first = min(faults, key=lambda fault: bool(fault.remedy))
    wrong = len({fault.node for fault in faults})
    others = f" ({wrong} of {num_nodes} nodes are wrong)" if wrong > 1 else ""
    remedy = first.remedy or replacing(cluster, first.node)
    figures = {"nodes_wrong": wrong, "nodes": num_nodes} if wrong > 1 else {}
    # Another machine does not help where a person has something to set right.
    is_hardware = not any(fault.remedy for fault in faults)
    bad_nodes = {fault.node: fault.what for fault in reversed(faults)} if is_hardware else {}
    sentence = f"node {first.node}: {first.what}{others}; {remedy}"
    return Finding(Verdict.BAD, sentence, figures, bad_nodes)


def replacing(cluster: LiveCluster, node_name: str) -> str:
    """Say what a person types to train without a broken node."""
    found = next((node for node in cluster.training_nodes if node.name == node_name), None)
    machine = f"instance {found.instance_id}" if found and found.instance_id else "its instance"
    if cluster.spec.hyperpod_vcpus is not None:
        return (
            f"type kubectl label node {node_name} {LABEL_HEALTH}={TO_REPLACE} --overwrite, by "
            "which HyperPod replaces it, and type the `/train` command again"
        )
    if cluster.spec.eks_name:
        return (
            f"type kubectl cordon {node_name}, have {machine} replaced, and type the `/train` "
            "command again"
        )
    return (
        f"{machine} goes with this cluster: type the `/train` command again for one with other "
        "machines"
    )


def _good(spec: ClusterSpec, health: Health, *, num_nodes: int) -> Finding:
    figures = {"gpus_seen": spec.num_gpus, "nodes": num_nodes}
    nodes = counted(num_nodes, "node")
    sentence = f"{spec.num_gpus} healthy GPUs on each of {nodes}, driver {health.driver}"
    if spec.num_efa:
        figures["efa_seen"] = spec.num_efa
        sentence += f", {spec.num_efa} EFA devices each"
    if health.hottest_celsius is not None:
        figures["hottest_celsius"] = health.hottest_celsius
        sentence += f", the hottest at {health.hottest_celsius} degrees Celsius"
    return Finding(Verdict.GOOD, "; ".join([sentence, *health.notes]), figures)
