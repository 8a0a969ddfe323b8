"""EKS add-ons as the objects that they bring into a cluster.

Used by `LocalCluster.install_addon`. Pure: name in, objects out.
"""

from __future__ import annotations

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.infrastructure import ADDON_IMAGE
from stationmaster.local.cluster.node.volumes import FSX_DRIVER

NAMESPACE = "kube-system"
FSX_ADDON = "aws-fsx-csi-driver"
# Deployment and DaemonSet of an add-on; one that is not here has a DaemonSet of its own name.
_WORKLOADS = {
    "vpc-cni": ("", "aws-node"),
    "coredns": ("coredns", ""),
    FSX_ADDON: ("fsx-csi-controller", "fsx-csi-node"),
}


def objects_of(name: str) -> list[tuple[Resource, Object]]:
    """Return what the add-on consists of, in the order of creation."""
    found: list[tuple[Resource, Object]] = []
    if name == FSX_ADDON:
        spec = {
            "attachRequired": False,
            "podInfoOnMount": False,
            "volumeLifecycleModes": ["Persistent"],
        }
        found.append((resources.CSI_DRIVERS, {"metadata": {"name": FSX_DRIVER}, "spec": spec}))
    deployment, daemon_set = _WORKLOADS.get(name, ("", name))
    for kind, workload, size in (
        (resources.DEPLOYMENTS, deployment, {"replicas": 2}),
        (resources.DAEMON_SETS, daemon_set, {}),
    ):
        if workload:
            about = {"metadata": {"name": workload, "namespace": NAMESPACE}}
            found.append((resources.SERVICE_ACCOUNTS, about))
            found.append((kind, {**about, "spec": _workload(workload, name) | size}))
    return found


def _workload(name: str, addon: str) -> Object:
    labels = {"app.kubernetes.io/name": name}
    container = {"name": name, "image": f"{ADDON_IMAGE}/{addon}:local"}
    return {
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "containers": [container],
                "tolerations": [{"operator": "Exists"}],
                "serviceAccountName": name,
            },
        },
    }
