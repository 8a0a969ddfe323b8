"""What steps need to know of Kueue's objects: queues of jobs, and the Workload of a job."""

from __future__ import annotations

from collections.abc import Mapping

from stationmaster.domain.cluster.spec import TeamQueue
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import Json, lets_guests_in
from stationmaster.rendering.metadata import namespace


def queue_takes(gateway: KubernetesGateway, api_version: str, queue: str) -> bool | None:
    """Say whether a ClusterQueue takes jobs of the gateway's namespace; None without one.

    A namespace that is not there yet is as it will be made.
    """
    item = gateway.find(api_version, "ClusterQueue", name=queue)
    if item is None:
        return None
    found = gateway.find("v1", "Namespace", name=gateway.namespace) or gateway.placed(namespace())
    return selects(item["spec"].get("namespaceSelector"), found["metadata"])


def local_queues(gateway: KubernetesGateway, api_version: str) -> list[TeamQueue]:
    """List the LocalQueues of all namespaces."""
    return [
        TeamQueue(
            namespace=item["metadata"]["namespace"],
            name=item["metadata"]["name"],
            cluster_queue=(item.get("spec") or {}).get("clusterQueue") or "",
        )
        for item in gateway.everywhere(api_version, "LocalQueue")
    ]


def is_open(gateway: KubernetesGateway, namespace: str) -> bool:
    """Say whether a namespace is there, and open to runs."""
    item = gateway.find("v1", "Namespace", name=namespace) or {"metadata": {}}
    return lets_guests_in(item["metadata"])


def workload_message(
    gateway: KubernetesGateway, api_version: str, labels: Mapping[str, str]
) -> str | None:
    """Say why the Workload with the labels has no quota yet; None where there is none.

    It is "" where it has quota, or nobody has looked.
    """
    found = gateway.listed(api_version, "Workload", labels=labels)
    if not found:
        return None
    conditions = (found[0].get("status") or {}).get("conditions") or []
    waits = [each for each in conditions if each.get("type") == "QuotaReserved"]
    return next((each.get("message", "") for each in waits if each.get("status") == "False"), "")


def selects(selector: Json | None, metadata: Json) -> bool:
    """Say whether a selector takes an object: none takes nothing, an empty one everything."""
    if selector is None:
        return False
    labels = metadata.get("labels") or {}
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(each, labels) for each in selector.get("matchExpressions") or []
    )


def _holds(expression: Json, labels: Json) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None
