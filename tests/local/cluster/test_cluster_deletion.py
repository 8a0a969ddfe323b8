"""Deletions that have to wait: storage in use, foreground, namespaces; and what an owner leaves.

The sentences are those of Kubernetes 1.35.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_probes import (
    CLAIMS,
    CONFIG_MAPS,
    JOBS,
    MERGE,
    NAMESPACES,
    PODS,
    VOLUMES,
    Answer,
    Asked,
    claim,
    volume,
)

from tests.support.cluster_fixtures import eventually, start_cluster

HOLD = "example.com/hold"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    cluster = start_cluster(Path(tmp_path_factory.mktemp("deletion")))
    yield Asked(cluster)
    cluster.close()


def pod_with_claim(name: str, claim: str, **spec: Any) -> dict[str, Any]:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    mount = {"name": "data", "mountPath": "/data"}
    container = {"name": "c", "image": "i", "command": ["true"], "volumeMounts": [mount]}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [container], "volumes": [volume], **spec},
    }


def dependent(name: str, *owners: Answer, blocks: bool = True, **metadata: Any) -> dict[str, Any]:
    about = [owner.body["metadata"] for owner in owners]
    shared = {"apiVersion": "v1", "kind": "ConfigMap", "blockOwnerDeletion": blocks}
    references = [{**shared, "name": each["name"], "uid": each["uid"]} for each in about]
    return {"metadata": {"name": name, "ownerReferences": references, **metadata}}


def release(asked: Asked, path: str) -> None:
    answer = asked("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)
    assert answer.status == 200


def gone(asked: Asked, path: str) -> None:
    eventually(lambda: asked("GET", path).status == 404, f"{path} gone")


def test_claim_in_use_goes_once_its_pod_is_deleted(asked: Asked) -> None:
    asked("POST", CLAIMS, claim("used", storageClassName=""))
    asked("POST", PODS, pod_with_claim("user", "used", nodeName="machine"))

    answer = asked("DELETE", f"{CLAIMS}/used")
    late = asked("POST", PODS, pod_with_claim("late", "used"))
    why = asked.cluster.event("late", "FailedScheduling").message
    kept = asked("GET", f"{CLAIMS}/used")
    asked("DELETE", f"{PODS}/user", gracePeriodSeconds="0")

    assert (answer.status, late.status) == (200, 201)
    assert kept.body["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert "deletionTimestamp" in kept.body["metadata"]
    assert why == '0/0 nodes are available: persistentvolumeclaim "used" is being deleted.'
    gone(asked, f"{CLAIMS}/used")
    asked("DELETE", f"{PODS}/late")


@pytest.mark.parametrize("replaced", [False, True])
def test_bound_volume_goes_after_its_claim(asked: Asked, replaced: bool) -> None:
    def claim_of() -> Any:
        stored = asked("GET", f"{VOLUMES}/bound").body
        is_bound = stored["status"]["phase"] == "Bound" and "finalizers" in stored["metadata"]
        return is_bound and stored["spec"].get("claimRef")

    asked("POST", VOLUMES, volume("bound", storageClassName=""))
    asked("POST", CLAIMS, claim("binding", storageClassName="", volumeName="bound"))
    first = eventually(claim_of, "a binding")
    if replaced:
        asked("PUT", f"{VOLUMES}/bound", volume("bound", storageClassName=""))
        assert eventually(claim_of, "the binding again") == first

    asked("DELETE", f"{VOLUMES}/bound")
    kept = asked("GET", f"{VOLUMES}/bound")
    asked("DELETE", f"{CLAIMS}/binding")

    assert kept.body["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    gone(asked, f"{CLAIMS}/binding")
    gone(asked, f"{VOLUMES}/bound")


def test_foreground_owner_waits_for_dependents_that_block_it(asked: Asked) -> None:
    owner = asked("POST", CONFIG_MAPS, {"metadata": {"name": "owner"}})
    asked("POST", CONFIG_MAPS, dependent("blocking", owner, finalizers=[HOLD]))
    asked("POST", CONFIG_MAPS, dependent("loose", owner, blocks=False, finalizers=[HOLD]))

    answer = asked("DELETE", f"{CONFIG_MAPS}/owner", propagationPolicy="Foreground")
    for name in ("blocking", "loose"):
        eventually(
            lambda name=name: (
                "deletionTimestamp" in asked("GET", f"{CONFIG_MAPS}/{name}").body["metadata"]
            ),
            f"{name} being deleted",
        )
    waiting = asked("GET", f"{CONFIG_MAPS}/owner")
    release(asked, f"{CONFIG_MAPS}/blocking")

    assert answer.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert waiting.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    gone(asked, f"{CONFIG_MAPS}/owner")
    assert asked("GET", f"{CONFIG_MAPS}/loose").status == 200
    release(asked, f"{CONFIG_MAPS}/loose")


def test_terminating_namespace_refuses_content_until_it_is_empty(asked: Asked) -> None:
    asked("POST", NAMESPACES, {"metadata": {"name": "ending"}})
    maps = f"{NAMESPACES}/ending/configmaps"
    asked("POST", maps, {"metadata": {"name": "held", "finalizers": [HOLD]}})

    asked("DELETE", f"{NAMESPACES}/ending")
    refused = asked("POST", maps, {"metadata": {"name": "late"}})
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "ending"}}
    unsaid = asked("POST", f"{NAMESPACES}/ending/events", event)
    kept = asked("GET", f"{NAMESPACES}/ending")
    release(asked, f"{maps}/held")

    assert (refused.status, refused.body["reason"]) == (403, "Forbidden")
    assert refused.message == (
        'configmaps "late" is forbidden: unable to create new content in namespace ending because '
        "it is being terminated"
    )
    assert refused.causes == [("metadata.namespace", "NamespaceTerminating")]
    assert unsaid.status == 403
    assert kept.body["status"]["phase"] == "Terminating"
    gone(asked, f"{NAMESPACES}/ending")


@pytest.mark.parametrize(("policy", "stays"), [("", True), ("Background", False)])
def test_pods_of_a_job_stay_unless_the_deletion_says_otherwise(
    asked: Asked, policy: str, stays: bool
) -> None:
    name = f"job{policy.lower()}"
    container = {"name": "c", "image": "i", "command": ["true"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    asked("POST", JOBS, {"metadata": {"name": name}, "spec": {"template": template}})

    def pods() -> list[Any]:
        found = asked("GET", PODS, labelSelector=f"job-name={name}")
        return list(found.body["items"])

    eventually(pods, "the job's pod")

    query = {"propagationPolicy": policy} if policy else {}
    answer = asked("DELETE", f"{JOBS}/{name}", **query)

    assert ("child pods are preserved" in answer.headers.get("warning", "")) == stays
    if stays:
        assert not pods()[0]["metadata"].get("ownerReferences")
    else:
        eventually(lambda: not pods(), "no pod")
