"""The relay: reports from inside the cluster what happens to jobs, pods and nodes."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.names import NAMESPACE, relay_name
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.plugins.workloads import look_at_deployment
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.relay import render_relay

NAME: Final = "relay"
ADDONS: Final[tuple[str, ...]] = ()


def applies(spec: ClusterSpec) -> bool:
    """Without it nothing is heard of a job."""
    return True


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Its account and rights, and a Deployment for each run that leases the cluster."""
    settings = cluster.services.settings
    return [
        item
        for run_id in cluster.runs
        for item in render_relay(
            run_id,
            job=cluster.services.runs.load(run_id).job,
            image=settings.relay_image,
            bus_name=settings.bus_name,
            region=settings.region,
        )
    ]


def look(cluster: LiveCluster) -> Finding:
    """Whether each of them runs."""
    finding = Finding(Verdict.GOOD, "nobody leases the cluster")
    for run_id in cluster.runs:
        finding = look_at_deployment(cluster, NAMESPACE, relay_name(run_id))
        if finding.verdict is not Verdict.GOOD:
            break
    return finding
