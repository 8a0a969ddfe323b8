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
from stationmaster.rendering.shared_volume import ClaimedStorage

if TYPE_CHECKING:
    from stationmaster.kubernetes.gateway import KubernetesGateway
    from stationmaster.kubernetes.views import ClaimView

_MODE: Final = "ReadWriteMany"
_SOURCES: Final = ("csi", "nfs")


def claimed_storage(gateway: KubernetesGateway, claim: str) -> ClaimedStorage:
    """Return the volume that the claim, called NAMESPACE/NAME, is bound to.

    Raises:
        ResourceFailed: a run cannot use it; says why, and what its owner types.
    """
    from kubernetes.utils.quantity import parse_quantity

    found = gateway.claim(claim)
    why = _why_not(found, claim)
    spec = gateway.volume_spec(found.volume) if found is not None and not why else {}
    if not why and not any(source in spec for source in _SOURCES):
        why = "its volume is of neither a CSI driver nor NFS, which can be mounted by a second one"
    if why:
        raise ResourceFailed(f"storage={CLAIM_PREFIX}{claim}: {why}")
    return ClaimedStorage(
        storage_gib=max(1, math.ceil(parse_quantity(spec["capacity"]["storage"]) / GIB)),
        mount_options=spec.get("mountOptions") or [],
        source={key: spec[key] for key in (*_SOURCES, "nodeAffinity") if key in spec},
    )


def _why_not(found: ClaimView | None, claim: str) -> str:
    namespace, _, name = claim.partition("/")
    kubectl, of_claim = f"kubectl --namespace {namespace}", f"persistentvolumeclaim {name}"
    if found is None:
        return f"there is no such claim; see {kubectl} get persistentvolumeclaims"
    if _MODE not in found.access_modes:
        return f"it has {', '.join(found.access_modes)}, {_MODE} is needed: all nodes write to it"
    if found.phase != "Bound":
        return f"it is {found.phase}, Bound is needed; {kubectl} describe {of_claim} says why"
    if not found.lets_guests_in:
        return (
            f"it is not open to guests; its owner types {kubectl} label {of_claim} "
            f"{LABEL_GUESTS}=allowed"
        )
    return ""
