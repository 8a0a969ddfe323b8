"""What the API server fills in on creation, and the name rules it checks.

Called by `objects.py` only. Pure: changes the object it is given, which is always a private copy.
"""

from __future__ import annotations

import re
from typing import Any

from local.cluster.api.resources import Object, Resource

_DNS_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")

DNS_1035_MESSAGE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_MESSAGE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_FREE_NAMES = {"roles", "rolebindings", "clusterroles", "clusterrolebindings"}


def is_dns_1035(name: str) -> bool:
    return len(name) <= 63 and _DNS_1035.match(name) is not None


def name_problems(resource: Resource, name: str) -> list[tuple[str, str]]:
    """Why `name` may not be used for this type; empty when it may."""
    if resource.plural in _FREE_NAMES:
        return []
    if resource.key == "services":
        if not is_dns_1035(name):
            return [("metadata.name", f'Invalid value: "{name}": {DNS_1035_MESSAGE}')]
        return []
    if len(name) > 253 or not _DNS_SUBDOMAIN.match(name):
        return [("metadata.name", f'Invalid value: "{name}": {_SUBDOMAIN_MESSAGE}')]
    return []


def fill(resource: Resource, obj: Object, sequence: int) -> None:
    """Fill the defaults of a new object. `sequence` numbers the addresses that are handed out."""
    filler = _FILLERS.get(resource.key)
    if filler is not None:
        filler(obj, sequence)


def _fill_pod(obj: Object, _: int) -> None:
    spec = obj.setdefault("spec", {})
    fill_pod_spec(spec)
    best_effort = not any((c.get("resources") or {}) for c in spec["containers"])
    obj["status"] = {"phase": "Pending", "qosClass": "BestEffort" if best_effort else "Burstable"}


def fill_pod_spec(spec: dict[str, Any]) -> None:
    """Defaults of a pod specification, in pods only (templates keep what was written)."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in [*spec.get("initContainers", []), *spec.setdefault("containers", [])]:
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
        for port in container.get("ports") or []:
            port.setdefault("protocol", "TCP")
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(t.get("key") in (key, None) and not t.get("value") for t in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
            )


def _fill_deployment(obj: Object, _: int) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = {"maxUnavailable": "25%", "maxSurge": "25%"}
    spec.setdefault("strategy", {"type": "RollingUpdate", "rollingUpdate": strategy})
    obj.setdefault("status", {})


def _fill_replica_set(obj: Object, _: int) -> None:
    obj.setdefault("spec", {}).setdefault("replicas", 1)
    obj.setdefault("status", {"replicas": 0})


def _fill_daemon_set(obj: Object, _: int) -> None:
    spec = obj.setdefault("spec", {})
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    spec.setdefault("updateStrategy", strategy)
    spec.setdefault("revisionHistoryLimit", 10)
    counts = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled")
    obj.setdefault("status", {**dict.fromkeys(counts, 0), "numberReady": 0})


def _fill_job(obj: Object, _: int) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("parallelism", 1)
    spec.setdefault("completions", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    labels = {"batch.kubernetes.io/job-name": obj["metadata"]["name"]}
    labels["batch.kubernetes.io/controller-uid"] = obj["metadata"]["uid"]
    spec.setdefault("selector", {"matchLabels": dict(labels)})
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {}).setdefault("labels", {}).update(
        {**labels, "job-name": obj["metadata"]["name"]}
    )
    obj.setdefault("status", {})


def _fill_service(obj: Object, sequence: int) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if spec["type"] != "ExternalName":
        spec.setdefault("clusterIP", f"10.100.{sequence // 250 % 250}.{sequence % 250 + 1}")
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    obj.setdefault("status", {"loadBalancer": {}})


def _fill_namespace(obj: Object, _: int) -> None:
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"][
        "name"
    ]
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}


def _fill_secret(obj: Object, _: int) -> None:
    obj.setdefault("type", "Opaque")


def _fill_volume(obj: Object, _: int) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    obj["status"] = {"phase": "Available"}


def _fill_claim(obj: Object, _: int) -> None:
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    obj["status"] = {"phase": "Pending"}


def _fill_crd(obj: Object, _: int) -> None:
    names = obj["spec"]["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    obj["spec"].setdefault("conversion", {"strategy": "None"})
    since = obj["metadata"]["creationTimestamp"]
    established = [
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    obj["status"] = {
        "acceptedNames": dict(names),
        "storedVersions": [v["name"] for v in obj["spec"]["versions"] if v.get("storage")],
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": since,
            }
            for kind, reason, message in established
        ],
    }


_FILLERS = {
    "pods": _fill_pod,
    "deployments.apps": _fill_deployment,
    "replicasets.apps": _fill_replica_set,
    "daemonsets.apps": _fill_daemon_set,
    "jobs.batch": _fill_job,
    "services": _fill_service,
    "namespaces": _fill_namespace,
    "secrets": _fill_secret,
    "persistentvolumes": _fill_volume,
    "persistentvolumeclaims": _fill_claim,
    "customresourcedefinitions.apiextensions.k8s.io": _fill_crd,
}
