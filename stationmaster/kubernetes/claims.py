"""Somebody's claim in an existing cluster, as the volume of a run that is a guest there.

No pod mounts a claim of another namespace. So a run gets a volume of its own with the same source,
kept when it is deleted; claim and volume of their owner are read and never changed. The owner
allows that with a label: whoever may label a claim decides about it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.names import CLAIM_PREFIX, LABEL_GUESTS
from stationmaster.domain.planning.memory import GIB
from stationmaster.kubernetes.rights import Right
from stationmaster.rendering.shared_volume import ClaimedStorage

if TYPE_CHECKING:
    from stationmaster.kubernetes.gateway import KubernetesGateway
    from stationmaster.kubernetes.views import ClaimView

_MODE: Final = "ReadWriteMany"
_SOURCES: Final = ("csi", "nfs")


def right_to_read(claim: str) -> Right:
    """Return what reading the claim takes, called NAMESPACE/NAME."""
    return Right("get", "", "persistentvolumeclaims", claim.partition("/")[0])


def claimed_storage(gateway: KubernetesGateway, claim: str) -> ClaimedStorage:
    """Return the volume that the claim, called NAMESPACE/NAME, is bound to.

    Raises:
        ResourceFailed: a run cannot use it; says why, and what its owner types.
    """
    from kubernetes.utils.quantity import parse_quantity

    namespace, _, name = claim.partition("/")
    found = gateway.claim(name, namespace=namespace)
    if why := _why_not(found, namespace, name):
        raise ResourceFailed(f"storage={CLAIM_PREFIX}{claim}: {why}")
    assert found is not None
    volume = gateway.volume(found.volume)
    if volume is None:
        raise ResourceFailed(f"storage={CLAIM_PREFIX}{claim}: its volume {found.volume} is gone")
    source = next((each for each in _SOURCES if each in volume.spec), None)
    if source is None:
        raise ResourceFailed(
            f"storage={CLAIM_PREFIX}{claim}: its volume {found.volume} is of neither a CSI driver "
            "nor NFS, which alone are mounted by a second volume"
        )
    return ClaimedStorage(
        storage_gib=max(1, math.ceil(parse_quantity(volume.capacity) / GIB)),
        mount_options=volume.spec.get("mountOptions") or [],
        source={key: volume.spec[key] for key in (source, "nodeAffinity") if key in volume.spec},
    )


def _why_not(found: ClaimView | None, namespace: str, name: str) -> str:
    of_namespace = f"kubectl --namespace {namespace}"
    if found is None:
        return (
            f"namespace {namespace} has no PersistentVolumeClaim {name}; see {of_namespace} get "
            "persistentvolumeclaims"
        )
    if _MODE not in found.access_modes:
        modes = ", ".join(found.access_modes) or "no access mode"
        return f"the claim has {modes}, {_MODE} is needed: all nodes write to it"
    if found.is_block:
        return "the claim is a block device, volumeMode Filesystem is needed"
    if found.phase != "Bound":
        return (
            f"the claim is {found.phase}, Bound is needed; {of_namespace} describe "
            f"persistentvolumeclaim {name} says why"
        )
    if not found.lets_guests_in:
        return (
            f"the claim is not open to guests; its owner types {of_namespace} label "
            f"persistentvolumeclaim {name} {LABEL_GUESTS}=allowed"
        )
    return ""
