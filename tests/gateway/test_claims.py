"""A claim that somebody has in an existing cluster, as the volume of a guest."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.ids import ClusterId
from stationmaster.kubernetes.claims import claimed_storage
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.rendering.shared_volume import render_storage
from tests.support.cluster_fixtures import eventually

CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {
        "name": "data",
        "namespace": "ml",
        "labels": {"stationmaster/guests": "allowed"},
    },
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "efs",
        "volumeName": "pvc-of-data",
        "resources": {"requests": {"storage": "5Gi"}},
    },
}
VOLUME: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "pvc-of-data"},
    "spec": {
        "capacity": {"storage": "5Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "efs",
        "mountOptions": ["tls"],
        "csi": {
            "driver": "efs.csi.aws.com",
            "volumeHandle": "fs-0123::fsap-4567",
            "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "x"},
        },
    },
}
SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}


def apply(gateway: KubernetesGateway, *, of_claim: Any = None, of_volume: Any = None) -> None:
    """Apply both, with these changes of their specs."""
    claim, volume = copy.deepcopy(CLAIM), copy.deepcopy(VOLUME)
    claim["spec"] |= of_claim or {}
    volume["spec"] |= of_volume or {}
    gateway.apply([SPACE, volume, claim])


def until_bound(gateway: KubernetesGateway, name: str, namespace: str) -> None:
    def is_bound() -> bool:
        found = gateway.claim(name, namespace=namespace)
        return found is not None and found.phase == "Bound"

    eventually(is_bound, f"{namespace}/{name} is bound")


def test_guest_gets_a_volume_of_its_own_that_is_kept_and_leaves_the_claim_as_it_is(
    gateway: KubernetesGateway,
) -> None:
    apply(gateway)
    until_bound(gateway, "data", "ml")

    storage = claimed_storage(gateway, "ml/data")
    volume, claim = render_storage(ClusterId("c-1"), storage)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "stationmaster"}}
    gateway.apply([space, volume, claim])

    until_bound(gateway, "c-1-fsx", "stationmaster")
    spec, theirs = volume["spec"], VOLUME["spec"]
    assert (spec["csi"], spec["mountOptions"]) == (theirs["csi"], theirs["mountOptions"])
    assert (spec["persistentVolumeReclaimPolicy"], spec["storageClassName"]) == ("Retain", "")
    assert storage.storage_gib == 5
    gateway.delete("v1", "Namespace", name="stationmaster")
    gateway.delete("v1", "PersistentVolume", name="c-1-fsx")
    eventually(lambda: gateway.volume("c-1-fsx") is None, "it is gone")
    found = gateway.claim("data", namespace="ml")
    assert found is not None
    assert (found.phase, found.volume) == ("Bound", "pvc-of-data")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "namespace ml has no PersistentVolumeClaim data; see kubectl --namespace ml get"),
        (
            {"of_claim": {"accessModes": ["ReadWriteOnce"]}},
            "the claim has ReadWriteOnce, ReadWriteMany is needed: all nodes write to it",
        ),
        (
            {"of_claim": {"volumeName": "another"}},
            "the claim is Pending, Bound is needed; kubectl --namespace ml describe persistentv",
        ),
        ({"of_claim": {"volumeMode": "Block"}}, "a block device, volumeMode Filesystem is needed"),
    ],
)
def test_claim_that_a_guest_cannot_use_is_refused_in_a_sentence(
    gateway: KubernetesGateway, given: dict[str, Any] | None, says: str
) -> None:
    if given is not None:
        apply(gateway, **given)

    with pytest.raises(ResourceFailed) as refused:
        claimed_storage(gateway, "ml/data")

    assert str(refused.value).startswith("storage=pvc:ml/data: ")
    assert says in str(refused.value)


def test_claim_of_an_owner_who_has_not_opened_it_and_one_on_a_disk_are_refused(
    gateway: KubernetesGateway,
) -> None:
    disk = {"hostPath": {"path": "/x"}}
    closed = CLAIM | {"metadata": CLAIM["metadata"] | {"labels": {}}}
    volume = {**VOLUME, "spec": {k: v for k, v in VOLUME["spec"].items() if k != "csi"} | disk}
    gateway.apply([SPACE, volume, closed])
    until_bound(gateway, "data", "ml")

    with pytest.raises(ResourceFailed, match="its owner types kubectl --namespace ml label persi"):
        claimed_storage(gateway, "ml/data")
    gateway.apply([CLAIM])
    with pytest.raises(ResourceFailed, match="volume pvc-of-data is of neither a CSI driver nor N"):
        claimed_storage(gateway, "ml/data")
