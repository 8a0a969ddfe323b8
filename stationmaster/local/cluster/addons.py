"""EKS add-ons as the objects that they bring into a cluster.

Used by `LocalCluster.set_addon`. Pure: name in, objects out.
"""

from __future__ import annotations

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.node.volumes import FSX_DRIVER

NAMESPACE = "kube-system"
_IMAGE = "eks/local-addon"
FSX_ADDON = "aws-fsx-csi-driver"
_NAMES = {
    "vpc-cni": "aws-node",
    "coredns": "coredns",
    FSX_ADDON: "fsx-csi-node",
}
_DEPLOYMENTS = {"coredns": "coredns", FSX_ADDON: "fsx-csi-controller"}


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
    accounts = {_DEPLOYMENTS.get(name, ""), _NAMES.get(name, name) if name != "coredns" else ""}
    found += [(resources.SERVICE_ACCOUNTS, _account(each)) for each in sorted(accounts - {""})]
    if name in _DEPLOYMENTS:
        spec = {**_workload(_DEPLOYMENTS[name], name), "replicas": 2}
        found.append((resources.DEPLOYMENTS, _named(_DEPLOYMENTS[name], spec)))
    if name != "coredns":
        workload = _NAMES.get(name, name)
        found.append((resources.DAEMON_SETS, _named(workload, _workload(workload, name))))
    return found


def _account(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": NAMESPACE}}


def _named(name: str, spec: Object) -> Object:
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def _workload(name: str, addon: str) -> Object:
    labels = {"app.kubernetes.io/name": name}
    container = {"name": name, "image": f"{_IMAGE}/{addon}:local"}
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
