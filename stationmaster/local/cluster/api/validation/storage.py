"""Volumes, claims, ConfigMaps and Secrets.

Source: kubernetes, pkg/apis/core/validation/validation.go. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stationmaster.local.cluster.api.quantities import parse_quantity
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.validation import names
from stationmaster.local.cluster.api.validation.problems import Problems

ACCESS_MODES = {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"}
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
_MOST_BYTES = 1024 * 1024


def check_volume(obj: Object, problems: Problems) -> None:
    """Check a PersistentVolume: one source, a size, ways to mount it."""
    spec = obj.get("spec") or {}
    if not spec.get("accessModes"):
        problems.required("spec.accessModes")
    _check_modes(spec, problems)
    capacity = spec.get("capacity") or {}
    if not capacity:
        problems.required("spec.capacity")
    elif set(capacity) != {"storage"}:
        problems.unsupported("spec.capacity", list(capacity), ["storage"])
    for name, amount in capacity.items():
        if parse_quantity(amount) <= 0:
            problems.invalid(f"spec.capacity[{name}]", str(amount), "must be greater than zero")
    sources = [name for name in spec if name not in NO_SOURCE]
    if not sources:
        problems.required("spec", "must specify a volume type")
    for extra in sources[1:]:
        problems.forbidden(f"spec.{extra}", "may not specify more than 1 volume type")
    driver = (spec.get("csi") or {}).get("driver", "")
    for message in names.subdomain_problems(driver.lower()) if driver else []:
        problems.invalid("spec.csi.driver", driver, message)
    _check_class(spec, problems)


def check_claim(obj: Object, problems: Problems) -> None:
    """Check a PersistentVolumeClaim: how it mounts, and how much it wants."""
    spec = obj.get("spec") or {}
    if not spec.get("accessModes"):
        problems.required("spec.accessModes", "at least 1 access mode is required")
    _check_modes(spec, problems)
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if size is None:
        problems.required("spec.resources[storage]")
    elif parse_quantity(size) <= 0:
        problems.invalid("spec.resources[storage]", str(size), "must be greater than zero")
    _check_class(spec, problems)


def _check_modes(spec: Mapping[str, Any], problems: Problems) -> None:
    for mode in spec.get("accessModes") or []:
        if mode not in ACCESS_MODES:
            problems.unsupported("spec.accessModes", mode, ACCESS_MODES)


def _check_class(spec: Mapping[str, Any], problems: Problems) -> None:
    if name := spec.get("storageClassName"):
        for message in names.subdomain_problems(name):
            problems.invalid("spec.storageClassName", name, message)


def check_data(obj: Object, problems: Problems) -> None:
    """Check the keys and the size of a ConfigMap or a Secret."""
    total = 0
    for field in ("data", "binaryData"):
        for key, value in (obj.get(field) or {}).items():
            for message in names.key_problems(key):
                problems.invalid(f"{field}[{key}]", key, message)
            total += len(value) if obj["kind"] == "ConfigMap" else len(value) * 3 // 4
    if total > _MOST_BYTES:
        problems.too_long("data" if obj["kind"] == "Secret" else "", _MOST_BYTES)
