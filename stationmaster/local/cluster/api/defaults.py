"""What the API server fills in where an object says nothing.

Called by `objects.py` only. Pure: changes the object it is given, which is always a private copy.
"""

from __future__ import annotations

from typing import Any

from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.resources import RBAC, Object, Resource

_ROLLING = {"maxUnavailable": "25%", "maxSurge": "25%"}
_ONE_BY_ONE = {"maxUnavailable": 1, "maxSurge": 0}
_SPECS: dict[str, Object] = {
    "deployments.apps": {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": _ROLLING},
    },
    "replicasets.apps": {"replicas": 1},
    "daemonsets.apps": {
        "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": _ONE_BY_ONE},
    },
    "jobs.batch": {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
    },
    "services": {"type": "ClusterIP", "sessionAffinity": "None"},
    "persistentvolumes": {
        "persistentVolumeReclaimPolicy": "Retain",
        "volumeMode": "Filesystem",
    },
    "persistentvolumeclaims": {"volumeMode": "Filesystem"},
    "nodes": {},
}
_COUNTS = (
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
)
_STATUSES: dict[str, Object] = {
    "deployments.apps": {},
    "replicasets.apps": {"replicas": 0},
    "daemonsets.apps": dict.fromkeys(_COUNTS, 0),
    "jobs.batch": {},
    "services": {"loadBalancer": {}},
    "namespaces": {"phase": "Active"},
    "persistentvolumes": {"phase": "Available"},
    "persistentvolumeclaims": {"phase": "Pending"},
}


def fill(resource: Resource, obj: Object, sequence: int) -> None:
    """Fill the defaults of a new object. `sequence` numbers the addresses that are handed out."""
    if resource.key in _SPECS:
        obj["spec"] = clone(_SPECS[resource.key]) | (obj.get("spec") or {})
    if resource.key in _STATUSES:
        obj["status"] = clone(_STATUSES[resource.key])
    filler = _FILLERS.get(resource.key)
    if filler is not None:
        filler(obj, sequence)


def fill_missing(resource: Resource, obj: Object, sequence: int) -> None:
    """Fill what a change left out of an object that exists; its status is another's."""
    status = obj.get("status")
    fill(resource, obj, sequence)
    if status is None:
        obj.pop("status", None)
    else:
        obj["status"] = status


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


def _fill_job(obj: Object, _: int) -> None:
    name, spec = obj["metadata"]["name"], obj["spec"]
    labels = {
        "batch.kubernetes.io/job-name": name,
        "batch.kubernetes.io/controller-uid": obj["metadata"]["uid"],
    }
    spec.setdefault("selector", {"matchLabels": dict(labels)})
    about = spec.setdefault("template", {}).setdefault("metadata", {})
    about.setdefault("labels", {}).update({**labels, "job-name": name})


def _fill_service(obj: Object, sequence: int) -> None:
    spec = obj["spec"]
    if spec["type"] != "ExternalName":
        spec.setdefault("clusterIP", f"10.100.{sequence // 250 % 250}.{sequence % 250 + 1}")
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _fill_namespace(obj: Object, _: int) -> None:
    about = obj["metadata"]
    about.setdefault("labels", {})["kubernetes.io/metadata.name"] = about["name"]
    obj["spec"] = {"finalizers": ["kubernetes"]}


def _fill_secret(obj: Object, _: int) -> None:
    obj.setdefault("type", "Opaque")


def _fill_binding(obj: Object, _: int) -> None:
    obj.setdefault("roleRef", {}).setdefault("apiGroup", RBAC)
    for subject in obj.get("subjects") or []:
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", RBAC)


def _fill_crd(obj: Object, _: int) -> None:
    names = obj.setdefault("spec", {}).setdefault("names", {})
    names.setdefault("singular", names.get("kind", "").lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    obj["spec"].setdefault("conversion", {"strategy": "None"})
    since = obj["metadata"]["creationTimestamp"]
    established = [
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    obj["status"] = {
        "acceptedNames": dict(names),
        "storedVersions": [
            version.get("name", "")
            for version in obj["spec"].get("versions") or []
            if version.get("storage")
        ],
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
    "jobs.batch": _fill_job,
    "services": _fill_service,
    "namespaces": _fill_namespace,
    "secrets": _fill_secret,
    f"rolebindings.{RBAC}": _fill_binding,
    f"clusterrolebindings.{RBAC}": _fill_binding,
    "customresourcedefinitions.apiextensions.k8s.io": _fill_crd,
}
