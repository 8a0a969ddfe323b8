"""Whole objects: workloads, Services, volumes and claims, ConfigMaps and Secrets. Pure.

Source: kubernetes, validation.go of pkg/apis/apps, batch and core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.selectors import match_selector
from stationmaster.local.cluster.api.validation import names
from stationmaster.local.cluster.api.validation.problems import Problems

Spec = Mapping[str, Any]

_ACCESS_MODES = {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"}
# What a PersistentVolume may say besides where its bytes are.
NO_SOURCE = {
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
}


def _check_workload(obj: Object, problems: Problems) -> None:
    """Check a Deployment, ReplicaSet or DaemonSet: it finds its pods, which run for ever."""
    spec = obj.get("spec") or {}
    selector, template = spec.get("selector"), spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector is not None and not any(selector.values()):
        kind = obj["kind"].lower()
        problems.invalid("spec.selector", selector, f"empty selector is invalid for {kind}")
    elif selector is not None and template and not match_selector(labels, selector):
        problems.invalid(
            "spec.template.metadata.labels", labels, "`selector` does not match template `labels`"
        )
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    if policy != "Always":
        problems.unsupported("spec.template.spec.restartPolicy", policy, ["Always"])


def _check_job(obj: Object, problems: Problems) -> None:
    """Check a Job: its pods end."""
    spec = obj.get("spec") or {}
    pod = (spec.get("template") or {}).get("spec") or {}
    policy, where = pod.get("restartPolicy", "Always"), "spec.template.spec.restartPolicy"
    if policy not in ("OnFailure", "Never"):
        problems.required(where, 'valid values: "OnFailure", "Never"')
    if spec.get("podFailurePolicy") is not None and policy != "Never":
        problems.invalid(
            where, policy, 'only "Never" is supported when podFailurePolicy is specified'
        )


def _check_service(obj: Object, problems: Problems) -> None:
    spec = obj.get("spec") or {}
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None":
        problems.required("spec.ports")
    for index, port in enumerate(ports):
        where, name = f"spec.ports[{index}]", port.get("name", "")
        if not name and len(ports) > 1:
            problems.required(f"{where}.name")
        problems.each(f"{where}.name", name, names.label_problems)
    names.check_labels(spec.get("selector"), "spec.selector", problems)


def _check_volume(obj: Object, problems: Problems) -> None:
    """Check a PersistentVolume: one source, a size, ways to mount it."""
    spec = obj.get("spec") or {}
    _check_storage(spec, problems)
    if not spec.get("capacity"):
        problems.required("spec.capacity")
    if not spec.keys() - NO_SOURCE:
        problems.required("spec", "must specify a volume type")


def _check_claim(obj: Object, problems: Problems) -> None:
    """Check a PersistentVolumeClaim: how it mounts, and how much it wants."""
    spec = obj.get("spec") or {}
    _check_storage(spec, problems)
    if ((spec.get("resources") or {}).get("requests") or {}).get("storage") is None:
        problems.required("spec.resources[storage]")


def _check_storage(spec: Spec, problems: Problems) -> None:
    if not spec.get("accessModes"):
        problems.required("spec.accessModes", "at least 1 access mode is required")
    for mode in spec.get("accessModes") or []:
        if mode not in _ACCESS_MODES:
            problems.unsupported("spec.accessModes", mode, _ACCESS_MODES)
    problems.each("spec.storageClassName", spec.get("storageClassName"), names.subdomain_problems)


def _check_data(obj: Object, problems: Problems) -> None:
    """Check the keys of a ConfigMap or a Secret."""
    for field in ("data", "binaryData"):
        for key in obj.get(field) or {}:
            problems.each(f"{field}[{key}]", key, names.key_problems)


CHECKS: Final[dict[str, Callable[[Object, Problems], None]]] = {
    "deployments.apps": _check_workload,
    "replicasets.apps": _check_workload,
    "daemonsets.apps": _check_workload,
    "jobs.batch": _check_job,
    "services": _check_service,
    "persistentvolumes": _check_volume,
    "persistentvolumeclaims": _check_claim,
    "configmaps": _check_data,
    "secrets": _check_data,
}
