"""The FSx CSI driver: mounts FSx for Lustre file systems into pods. An EKS add-on."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.names import FSX_CSI_ADDON, POD_IDENTITY_AGENT
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.shared_volume import CSI_DRIVER

NAME: Final = "fsx-csi-driver"
# The driver's controller gets its AWS role through the first.
ADDONS: Final = (POD_IDENTITY_AGENT, FSX_CSI_ADDON)


def applies(spec: ClusterSpec) -> bool:
    """Say yes for new clusters; an existing EKS cluster has the driver already."""
    return not spec.eks_name


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make nothing: EKS makes the objects of its add-ons."""
    return []


def look(cluster: LiveCluster) -> Finding:
    """Say whether EKS calls it active and the cluster knows the driver."""
    found = cluster.services.addons.describe(cluster.cluster_id, FSX_CSI_ADDON)
    if found is None:
        return Finding(Verdict.WAITING, f"add-on {FSX_CSI_ADDON} is missing")
    said = f": {found.failure}" if found.failure else ""
    if found.status == "CREATE_FAILED":
        why = (said or f": it is {found.status}").rstrip(".")
        sentence = f"EKS could not install add-on {FSX_CSI_ADDON}{why}; try again later"
        return Finding(Verdict.BAD, sentence)
    if found.status != "ACTIVE":
        return Finding(Verdict.WAITING, f"add-on {FSX_CSI_ADDON} is {found.status}{said}")
    if not cluster.kubernetes.exists("storage.k8s.io/v1", "CSIDriver", name=CSI_DRIVER):
        return Finding(Verdict.WAITING, f"CSI driver {CSI_DRIVER} is not registered")
    return Finding(Verdict.GOOD, f"CSI driver {CSI_DRIVER} is registered")
