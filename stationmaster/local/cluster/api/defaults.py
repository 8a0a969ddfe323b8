"""What the API server fills in where an object says nothing.

Called by `objects.py` only. Pure: changes the object it is given, which is always a private copy.
"""

from __future__ import annotations

from typing import Any

from stationmaster.local.cluster.api.resources import RBAC, Object, Resource


def fill(resource: Resource, obj: Object, sequence: int) -> None:
    """Fill the defaults of a new object. `sequence` numbers the addresses that are handed out."""
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
    "deployments.apps": _fill_deployment,
    "replicasets.apps": _fill_replica_set,
    "daemonsets.apps": _fill_daemon_set,
    "jobs.batch": _fill_job,
    "services": _fill_service,
    "namespaces": _fill_namespace,
    "secrets": _fill_secret,
    "persistentvolumes": _fill_volume,
    "persistentvolumeclaims": _fill_claim,
    f"rolebindings.{RBAC}": _fill_binding,
    f"clusterrolebindings.{RBAC}": _fill_binding,
    "customresourcedefinitions.apiextensions.k8s.io": _fill_crd,
}
