"""The local Kubernetes API through the official Python client: verbs, patches, watches, errors."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

import pytest
import yaml
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

from stationmaster.local.cluster.api import applying
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.requests import page
from stationmaster.local.cluster.api.resources import NAMESPACES
from stationmaster.local.cluster.api.selectors import parse_label_selector
from stationmaster.local.cluster.api.store import Store
from stationmaster.local.cluster.api.types import struct
from tests.support.cluster_fixtures import (
    Cluster,
    pytorchjob,
    pytorchjob_crd,
)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"of": "test"}}, "data": data}


def body_of(error: ApiException) -> dict[str, Any]:
    return json.loads(error.body)


def refusal(cluster: Cluster, **headers: str) -> tuple[int, str]:
    """What a request for the pods with these headers is answered."""
    authority = cluster.api.rest_client.pool_manager.connection_pool_kw["ca_certs"]
    request = urllib.request.Request(f"{cluster.local.url}/api/v1/pods", headers=headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, context=ssl.create_default_context(cafile=authority))
    with caught.value as answer:
        return answer.code, answer.read().decode()


def test_request_without_token_is_unauthorized(cluster: Cluster) -> None:
    code, body = refusal(cluster)

    assert (code, json.loads(body)["reason"]) == (401, "Unauthorized")


@pytest.mark.parametrize(
    ("header", "value", "words"),
    [
        ("Origin", "https://evil.test", "web pages may not use this"),
        ("Host", "evil.test", "is not this machine"),
    ],
)
def test_page_with_the_token_is_refused(
    cluster: Cluster, header: str, value: str, words: str
) -> None:
    user = yaml.safe_load(cluster.local.kubeconfig.read_text())["users"][0]["user"]

    code, body = refusal(cluster, Authorization=f"Bearer {user['token']}", **{header: value})

    assert code == 403
    assert words in body


def test_list_is_read_page_by_page() -> None:
    items = [{"metadata": {"name": name}} for name in "abc"]
    first, token = page(items, 2, None)

    rest, end = page(items, 2, token)
    with pytest.raises(ApiError, match="continue key is not valid"):
        page(items, 2, "no-token")

    assert ([item["metadata"]["name"] for item in first + rest], end) == (["a", "b", "c"], "")


def test_strategic_merge_tells_elements_apart_by_their_key() -> None:
    containers = [{"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]
    patch = [{"name": "c", "env": [{"name": "A", "$patch": "delete"}]}, {"name": "d"}]

    result = applying.strategic_merge(
        {"containers": containers}, {"containers": patch}, struct("V1PodSpec")
    )

    assert result == {
        "containers": [{"name": "c", "env": [{"name": "B", "value": "2"}]}, {"name": "d"}]
    }


def test_custom_object_against_schema_is_invalid_with_field_path(cluster: Cluster) -> None:
    job = pytorchjob("wrong-type")
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = "two"

    with pytest.raises(ApiException) as caught:
        cluster.submit(job)

    assert caught.value.status == 422
    cause = body_of(caught.value)["details"]["causes"][0]
    assert cause["field"] == "spec.pytorchReplicaSpecs.Worker.replicas"
    assert 'must be of type integer: "string"' in cause["message"]


def test_custom_object_unknown_field_is_pruned_or_refused_when_strict(
    empty_cluster: Cluster,
) -> None:
    crd = pytorchjob_crd()
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for declared in (spec, spec["properties"]["runPolicy"]):
        declared.pop("x-kubernetes-preserve-unknown-fields", None)
    client.ApiextensionsV1Api(empty_cluster.api).create_custom_resource_definition(crd)
    job = pytorchjob("pruned", runPolicy={"suspend": True, "surprise": 1})

    stored = empty_cluster.submit(job)
    with pytest.raises(ApiException) as caught:
        empty_cluster.custom.create_namespaced_custom_object(
            "kubeflow.org", "v1", "default", "pytorchjobs", job, field_validation="Strict"
        )

    assert stored["spec"]["runPolicy"] == {"suspend": True}
    assert caught.value.status == 400
    assert 'unknown field "spec.runPolicy.surprise"' in body_of(caught.value)["message"]


def test_status_update_leaves_spec_and_spec_update_leaves_status(cluster: Cluster) -> None:
    job = pytorchjob("isolated", runPolicy={"suspend": True})
    job["status"] = {"startTime": "2020-01-01T00:00:00Z"}
    cluster.submit(job)
    cluster.job_condition("isolated", "Suspended")

    cluster.custom.patch_namespaced_custom_object_status(
        "kubeflow.org", "v1", "default", "pytorchjobs", "isolated",
        {"spec": {"nprocPerNode": "4"}, "status": {"mark": "set"}},
    )  # fmt: skip

    stored = cluster.job("isolated")
    assert "nprocPerNode" not in stored["spec"]
    assert stored["status"].get("startTime") != "2020-01-01T00:00:00Z"


def test_watch_from_a_version_replays_what_came_after(cluster: Cluster) -> None:
    before = cluster.core.list_namespaced_config_map("default").metadata.resource_version
    cluster.core.create_namespaced_config_map("default", config_map("watched", a="1"))
    cluster.core.patch_namespaced_config_map("watched", "default", {"data": {"a": "2"}})
    cluster.core.delete_namespaced_config_map("watched", "default")

    events = list(
        watch.Watch().stream(
            cluster.core.list_namespaced_config_map,
            "default",
            resource_version=before,
            field_selector="metadata.name=watched",
            timeout_seconds=1,
        )
    )

    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert [event["object"].data for event in events] == [{"a": "1"}, {"a": "2"}, {"a": "2"}]


def test_watch_from_a_forgotten_version_is_expired(cluster: Cluster) -> None:
    stream = watch.Watch().stream(
        cluster.core.list_namespaced_config_map, "default", resource_version="1", timeout_seconds=1
    )

    with pytest.raises(ApiException) as caught:
        list(stream)

    assert caught.value.status == 410


def test_store_replay_beyond_its_history_is_expired() -> None:
    store = Store(history=2)
    first = store.put("things", {"metadata": {"name": "a"}})["metadata"]["resourceVersion"]
    for name in ("b", "c", "d"):
        store.put("things", {"metadata": {"name": name}})
    seen: list[str] = []

    store.subscribe(lambda change: seen.append(change.object["metadata"]["name"]), since=1002)
    with pytest.raises(ApiError, match="too old resource version"):
        store.subscribe(lambda change: None, since=int(first))

    assert seen == ["c", "d"]


def test_second_deletion_is_stored_only_where_it_changes_the_object() -> None:
    objects = Objects()
    held = config_map("held") | {"kind": "Namespace", "apiVersion": "v1"}
    held["metadata"]["finalizers"] = ["example.com/held"]
    objects.create(NAMESPACES, held)

    first, _ = objects.delete(NAMESPACES, "", "held")
    second, _ = objects.delete(NAMESPACES, "", "held")
    third, gone = objects.delete(NAMESPACES, "", "held", propagation="Foreground")

    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert third["metadata"]["finalizers"] == ["example.com/held", "foregroundDeletion"]
    assert objects.get(NAMESPACES, "", "held") == third
    assert not gone


def test_label_selector_chooses_objects() -> None:
    item = {"metadata": {"labels": {"a": "b"}}}
    choosing = ("a=b,c!=d", "a == b", "a in (x, b)", "a", "!c")
    others = ("a!=b", "a notin (b)", "c", "!a", "a,c")

    chosen = [text for text in (*choosing, *others) if parse_label_selector(text)(item)]

    assert chosen == [*choosing]
