"""Images of cluster components whose work is emulated: their pods run without a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.conditions import condition_of, is_going
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object

NVIDIA_PLUGIN, EFA_PLUGIN = "nvidia-device-plugin", "efa-device-plugin"
OPERATOR, ADDON = "training-operator", "addon"
TRAINER, JOBSET = "trainer", "jobset"
ADDON_IMAGE = "eks/local-addon"
"""What pods of every add-on of EKS have here."""
DEVICES = {NVIDIA_PLUGIN: "nvidia.com/gpu", EFA_PLUGIN: "vpc.amazonaws.com/efa"}

# Checked in this order: the EFA plugin's name contains the NVIDIA plugin's.
_IMAGES: tuple[tuple[str, str], ...] = (
    ("aws-efa-k8s-device-plugin", EFA_PLUGIN),
    ("k8s-device-plugin", NVIDIA_PLUGIN),
    ("training-operator", OPERATOR),
    ("trainer-controller-manager", TRAINER),
    ("jobset/jobset", JOBSET),
    ("mpi-operator", ADDON),
    (ADDON_IMAGE, ADDON),
)


def role_of(image: str) -> str | None:
    """Return the component that an image is, None when it is not one of the emulated ones."""
    name = image.partition("@")[0]
    return next((role for pattern, role in _IMAGES if pattern in name), None)


def pod_role(pod: Object) -> str | None:
    """Return the component of a pod's first container."""
    containers = pod["spec"].get("containers") or []
    return role_of(containers[0].get("image", "")) if containers else None


def is_plugin_or_relay(pod: Object) -> bool:
    """Say whether the pod is one that the `plugin-never-ready` fault holds back."""
    if pod_role(pod) in (NVIDIA_PLUGIN, EFA_PLUGIN, OPERATOR):
        return True
    return any(_is_relay(container) for container in pod["spec"].get("containers") or [])


def _is_relay(container: Mapping[str, Any]) -> bool:
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    image = container.get("image", "").rpartition("/")[2]
    return "relay" in words or "relay" in image


def is_ready(pod: Object) -> bool:
    return condition_of(pod.get("status"), "Ready") is not None and not is_going(pod)


def operator_available(objects: Objects, role: str = OPERATOR) -> bool:
    """Say whether a Deployment of an operator is available: it reconciles and admits."""
    for deployment in objects.list(resources.DEPLOYMENTS):
        containers = deployment["spec"]["template"]["spec"].get("containers") or []
        if any(role_of(container.get("image", "")) == role for container in containers):
            status = deployment.get("status") or {}
            if status.get("availableReplicas", 0) > 0:
                return True
    return False
