"""The product's own objects, with the verbs of its gateway and its relay, on any Kubernetes API."""

from __future__ import annotations

import pytest
import yaml
from api_probes import MERGE, Asked

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.kinds import path_of_object
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.plugins.relay import render_people_rights
from stationmaster.relay.cluster import ClusterApi
from stationmaster.rendering.examples import example, saving_example
from stationmaster.rendering.shared_volume import SharedStorage, render_storage

STORAGE = SharedStorage("fs-0123456789abcdef0", "fs-0.fsx.amazonaws.com", "abcdefgh", 1200)
OBJECTS = [
    *yaml.safe_load_all(example(CATALOGUE["tiny-llama"])),
    *yaml.safe_load_all(saving_example()),
    *render_storage("team-a", STORAGE),
    *render_people_rights(),
    *load_manifests("training-operator"),
]
# The fixture makes the one; nothing answers for the webhook, and a namespace takes all with it.
LEFT_OUT = {"CustomResourceDefinition", "ValidatingWebhookConfiguration", "Namespace"}
ONE_EACH = {each["kind"]: each for each in reversed(OBJECTS) if each["kind"] not in LEFT_OUT}


@pytest.mark.parametrize("kind", ONE_EACH)
def test_object_is_applied_listed_watched_changed_and_deleted(anywhere: Asked, kind: str) -> None:
    gateway, api = KubernetesGateway(anywhere.cluster.api), ClusterApi(anywhere.cluster.api)
    namespaces = [each for each in OBJECTS if each["kind"] == "Namespace"]
    path = path_of_object(ONE_EACH[kind])
    collection, _, name = path.rpartition("/")

    gateway.apply([*namespaces, ONE_EACH[kind]])
    first = anywhere("GET", path).body
    gateway.apply([ONE_EACH[kind]])
    _, version = api.list(collection, {})
    changed = anywhere("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)
    listed, _ = api.list(collection, {"labelSelector": "a=b,!c"})
    watched = {"fieldSelector": f"metadata.name={name}"}
    event, _ = next(api.watch(collection, watched, resource_version=version, timeout_s=60))
    stale = {**first, "metadata": {**first["metadata"], "resourceVersion": "1"}}
    refused = [
        anywhere("PUT", path, stale),
        anywhere("DELETE", path, {"preconditions": {"uid": "another"}}),
    ]
    deleted = anywhere("DELETE", path, {"preconditions": {"uid": first["metadata"]["uid"]}})

    assert changed.body["metadata"].get("generation") == first["metadata"].get("generation")
    assert (event, [each["metadata"]["name"] for each in listed]) == ("MODIFIED", [name])
    assert [each.body["reason"] for each in refused] == ["Conflict", "Conflict"]
    assert (changed.status, deleted.status) == (200, 200)
