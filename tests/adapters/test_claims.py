"""A claim that somebody has in an existing cluster, as the volume of a guest."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.ids import ClusterId
from stationmaster.kubernetes.claims import claimed_storage
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.rendering.shared_volume import render_storage
from tests.support.answering_server import AnsweringServer

EFS = {"driver": "efs.csi.aws.com", "volumeHandle": "fs-01::fsap-23", "volumeAttributes": {}}
SIZE = {"capacity": {"storage": "5Gi"}}


def serve(server: AnsweringServer, source: dict[str, Any], labels: dict[str, str], **claim: Any):
    """Have a claim ml/data there, bound to a volume of that source."""
    spec = {"accessModes": ["ReadWriteMany"], "volumeName": "pvc-1"} | claim.pop("spec", {})
    found = {"metadata": {"labels": labels}, "spec": spec, "status": {"phase": "Bound"}} | claim
    server.of_paths["/api/v1/namespaces/ml/persistentvolumeclaims/data"] = (200, found)
    theirs = SIZE | {"persistentVolumeReclaimPolicy": "Delete", "storageClassName": "efs"}
    server.of_paths["/api/v1/persistentvolumes/pvc-1"] = (200, {"spec": theirs | source})


def test_guest_gets_a_volume_of_its_own_with_the_source_of_theirs_that_is_kept(
    server: AnsweringServer, gateway: KubernetesGateway
) -> None:
    serve(server, {"csi": EFS, "mountOptions": ["tls"]}, {"stationmaster/guests": "allowed"})

    volume, _ = render_storage(ClusterId("c-1"), claimed_storage(gateway, "ml/data"))

    spec = volume["spec"]
    assert (spec["csi"], spec["mountOptions"], spec["capacity"]) == (EFS, ["tls"], SIZE["capacity"])
    assert (spec["persistentVolumeReclaimPolicy"], spec["storageClassName"]) == ("Retain", "")
    assert spec["claimRef"] == {"namespace": "stationmaster", "name": "c-1-fsx"}
    assert {method for method, _, _ in server.requests} == {"GET"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"spec": {"accessModes": ["ReadWriteOnce"]}}, "it has ReadWriteOnce, ReadWriteMany is n"),
        (
            {"status": {"phase": "Pending"}},
            "it is Pending, Bound is needed; kubectl --namespace ml",
        ),
        ({"labels": {}}, "label persistentvolumeclaim data stationmaster/guests=allowed"),
        ({"source": {"hostPath": {"path": "/x"}}}, "of neither a CSI driver nor NFS"),
        (None, "there is no such claim; see kubectl --namespace ml get persistentvolumeclaims"),
    ],
)
def test_claim_that_a_guest_cannot_use_is_refused_in_a_sentence(
    server: AnsweringServer,
    gateway: KubernetesGateway,
    changes: dict[str, Any] | None,
    says: str,
) -> None:
    server.say((404, {"message": "not found"}))
    if changes is not None:
        serve(
            server,
            **{"source": {"csi": EFS}, "labels": {"stationmaster/guests": "allowed"}} | changes,
        )

    with pytest.raises(ResourceFailed) as refused:
        claimed_storage(gateway, "ml/data")

    assert str(refused.value).startswith("storage=pvc:ml/data: ")
    assert says in str(refused.value)
