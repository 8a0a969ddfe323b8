"""Which Service names the cluster's DNS would know. Source: the DNS specification of Kubernetes.

Asked by the pod worker before it starts what looks such a name up. Pure but for reading objects.
"""

from __future__ import annotations

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.conditions import has_ended
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.selectors import match_labels


def resolves(objects: Objects, namespace: str, name: str) -> bool:
    """Say whether a Service's name has an address.

    That of a headless Service has the addresses of its ready pods, so it has none before one is
    ready, unless the Service publishes the others too. The Training Operator's do not.
    """
    service = objects.find(resources.SERVICES, namespace, name)
    if service is None:
        return False
    spec = service["spec"]
    if spec.get("clusterIP") != "None":
        return True
    shown = [
        pod
        for pod in objects.list(resources.PODS, namespace)
        if match_labels(pod["metadata"].get("labels") or {}, spec.get("selector"))
        and (pod.get("status") or {}).get("podIP")
        and not has_ended(pod)
    ]
    if spec.get("publishNotReadyAddresses"):
        return bool(shown)
    return any(infrastructure.is_ready(pod) for pod in shown)
