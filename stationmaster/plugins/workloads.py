"""Whether a plugin's Deployment or DaemonSet is up."""

from __future__ import annotations

from stationmaster.inspection import Finding, LiveCluster, Verdict


def look_at_deployment(cluster: LiveCluster, namespace: str, name: str) -> Finding:
    """Find it good once all replicas of the newest revision are available."""
    gateway = cluster.kubernetes
    if gateway.deployment_ready(name, namespace=namespace):
        return Finding(Verdict.GOOD, f"Deployment {name} is available")
    return _waiting(cluster, "Deployment", namespace, name)


def look_at_daemon_set(cluster: LiveCluster, name: str) -> Finding:
    """Find it good once a pod is ready on each training node, and wherever else it belongs."""
    nodes = cluster.spec.nodes
    if cluster.kubernetes.daemon_set_ready(name, nodes=nodes, namespace="kube-system"):
        return Finding(
            Verdict.GOOD, f"DaemonSet {name} is ready on {nodes} nodes", {"nodes": nodes}
        )
    return _waiting(cluster, "DaemonSet", "kube-system", name)


def _waiting(cluster: LiveCluster, kind: str, namespace: str, name: str) -> Finding:
    gateway = cluster.kubernetes
    pods = gateway.pods_of(kind, name, namespace=namespace)
    return Finding(Verdict.WAITING, gateway.explain(pods, namespace=namespace))
