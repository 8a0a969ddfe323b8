"""The local Kubernetes API through the official Python client: verbs, patches, watches, errors."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest
from kubernetes import client, dynamic, watch
from kubernetes.client.exceptions import ApiException

from stationmaster.local.cluster.api import object_patches
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.requests import Versions, page
from stationmaster.local.cluster.api.resources import NAMESPACES, Catalog
from stationmaster.local.cluster.api.store import Store
from tests.support.cluster_fixtures import (
    Cluster,
    eventually,
    pytorchjob,
    pytorchjob_crd,
    shell_pod,
)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"of": "test"}}, "data": data}


def body_of(error: ApiException) -> dict[str, Any]:
    return json.loads(error.body)


def test_create_same_name_twice_is_already_exists(cluster: Cluster) -> None:
    cluster.core.create_namespaced_config_map("default", config_map("twice"))

    with pytest.raises(ApiException) as caught:
        cluster.core.create_namespaced_config_map("default", config_map("twice"))

    assert caught.value.status == 409
    assert body_of(caught.value)["reason"] == "AlreadyExists"
    assert body_of(caught.value)["message"] == 'configmaps "twice" already exists'


def test_create_with_generate_name_gets_a_suffix(cluster: Cluster) -> None:
    made = cluster.core.create_namespaced_config_map(
        "default", {"metadata": {"generateName": "made-"}}
    )

    assert made.metadata.name.startswith("made-")
    assert len(made.metadata.name) == len("made-") + 5


def test_create_in_unknown_namespace_is_not_found(cluster: Cluster) -> None:
    with pytest.raises(ApiException) as caught:
        cluster.core.create_namespaced_config_map("nowhere", config_map("x"))

    assert caught.value.status == 404
    assert body_of(caught.value)["message"] == 'namespaces "nowhere" not found'


def test_create_with_invalid_name_lists_the_cause(cluster: Cluster) -> None:
    with pytest.raises(ApiException) as caught:
        cluster.core.create_namespaced_config_map("default", config_map("Upper_Case"))

    assert caught.value.status == 422
    assert body_of(caught.value)["details"]["causes"][0]["field"] == "metadata.name"


def test_create_with_dry_run_stores_nothing(cluster: Cluster) -> None:
    cluster.core.create_namespaced_config_map("default", config_map("dry"), dry_run="All")

    with pytest.raises(ApiException, match="404"):
        cluster.core.read_namespaced_config_map("dry", "default")


def test_request_without_token_is_unauthorized(cluster: Cluster) -> None:
    context = cluster.api.rest_client.pool_manager.connection_pool_kw["ca_certs"]
    import ssl

    trusted = ssl.create_default_context(cafile=context)

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{cluster.local.url}/api/v1/pods", context=trusted)

    with caught.value as answer:
        assert answer.code == 401
        assert json.loads(answer.read())["reason"] == "Unauthorized"


@pytest.mark.parametrize(
    "foreign",
    [
        {"Host": "evil.test"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "https://evil.test"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_browser_is_refused_whatever_it_brings(
    cluster: Cluster, method: str, foreign: dict[str, str]
) -> None:
    pool = cluster.api.rest_client.pool_manager
    token: dict[str, str] = {}
    cluster.api.update_params_for_auth(token, [], ["BearerToken"], "", "", None)
    body = json.dumps(config_map("of-a-page")).encode() if method == "POST" else None
    namespaced = f"{cluster.local.url}/api/v1/namespaces/default/configmaps"

    assert pool.request("GET", namespaced, headers=token).status == 200
    for url in (namespaced, f"{cluster.local.url}/version"):
        answer = pool.request(method, url, body=body, headers={**token, **foreign})

        assert answer.status == 403
        assert not any(name.lower().startswith("access-control") for name in answer.headers)
    with pytest.raises(ApiException, match="404"):
        cluster.core.read_namespaced_config_map("of-a-page", "default")


def test_replace_with_stale_version_is_conflict(cluster: Cluster) -> None:
    first = cluster.core.create_namespaced_config_map("default", config_map("stale", a="1"))
    cluster.core.patch_namespaced_config_map("stale", "default", {"data": {"a": "2"}})
    first.data = {"a": "3"}

    with pytest.raises(ApiException) as caught:
        cluster.core.replace_namespaced_config_map("stale", "default", first)

    assert caught.value.status == 409
    assert body_of(caught.value)["reason"] == "Conflict"


def test_write_without_change_keeps_the_version(cluster: Cluster) -> None:
    first = cluster.core.create_namespaced_config_map("default", config_map("same", a="1"))

    again = cluster.core.patch_namespaced_config_map("same", "default", {"data": {"a": "1"}})

    assert again.metadata.resource_version == first.metadata.resource_version


def test_secret_string_data_is_stored_encoded(cluster: Cluster) -> None:
    cluster.core.create_namespaced_secret(
        "default", {"metadata": {"name": "plain"}, "stringData": {"token": "abc"}}
    )

    assert cluster.core.read_namespaced_secret("plain", "default").data == {"token": "YWJj"}


def test_list_selects_by_label_and_field(cluster: Cluster) -> None:
    for name in ("pick-a", "pick-b"):
        body = config_map(name)
        body["metadata"]["labels"] = {"pick": name[-1]}
        cluster.core.create_namespaced_config_map("default", body)

    by_label = cluster.core.list_namespaced_config_map("default", label_selector="pick in (a,c)")
    by_field = cluster.core.list_namespaced_config_map(
        "default", label_selector="pick", field_selector="metadata.name!=pick-a"
    )

    assert [item.metadata.name for item in by_label.items] == ["pick-a"]
    assert [item.metadata.name for item in by_field.items] == ["pick-b"]


def test_list_in_pages_returns_every_object_once(cluster: Cluster) -> None:
    for index in range(5):
        body = config_map(f"page-{index}")
        body["metadata"]["labels"] = {"paged": "yes"}
        cluster.core.create_namespaced_config_map("default", body)
    names, token = [], None

    while True:
        listed = cluster.core.list_namespaced_config_map(
            "default", label_selector="paged=yes", limit=2, _continue=token
        )
        names += [item.metadata.name for item in listed.items]
        token = listed.metadata._continue
        if not token:
            break

    assert names == [f"page-{index}" for index in range(5)]


def test_list_page_that_the_history_left_behind_is_expired() -> None:
    items = [{"metadata": {"name": name}} for name in "abc"]
    first, token = page(items, 2, None, Versions(present=1010, oldest=1000))

    rest, end = page(items, 2, token, Versions(present=1020, oldest=1010))
    with pytest.raises(ApiError, match="continue parameter is too old") as expired:
        page(items, 2, token, Versions(present=1020, oldest=1011))
    with pytest.raises(ApiError, match="continue key is not valid") as malformed:
        page(items, 2, "no-token", Versions(present=1020, oldest=1000))

    assert ([item["metadata"]["name"] for item in first + rest], end) == (["a", "b", "c"], "")
    assert (expired.value.code, malformed.value.code) == (410, 400)


def test_delete_collection_removes_only_what_is_selected(cluster: Cluster) -> None:
    for name, group in (("gone-1", "gone"), ("gone-2", "gone"), ("stays-1", "stays")):
        body = config_map(name)
        body["metadata"]["labels"] = {"group": group}
        cluster.core.create_namespaced_config_map("default", body)

    cluster.core.delete_collection_namespaced_config_map("default", label_selector="group=gone")

    left = cluster.core.list_namespaced_config_map("default", label_selector="group").items
    assert [item.metadata.name for item in left] == ["stays-1"]


def test_delete_with_finalizer_waits_for_its_removal(cluster: Cluster) -> None:
    body = config_map("held")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.core.create_namespaced_config_map("default", body)

    cluster.core.delete_namespaced_config_map("held", "default")

    held = cluster.core.read_namespaced_config_map("held", "default")
    assert held.metadata.deletion_timestamp is not None
    cluster.core.patch_namespaced_config_map("held", "default", {"metadata": {"finalizers": None}})
    with pytest.raises(ApiException, match="404"):
        cluster.core.read_namespaced_config_map("held", "default")


def test_delete_namespace_deletes_what_is_inside(cluster: Cluster) -> None:
    cluster.core.create_namespace({"metadata": {"name": "brief"}})
    cluster.core.create_namespaced_config_map("brief", config_map("inside"))

    cluster.core.delete_namespace("brief")

    names = {"brief"}
    eventually(
        lambda: not names & {n.metadata.name for n in cluster.core.list_namespace().items},
        "the namespace gone",
    )
    assert not cluster.core.list_namespaced_config_map("brief").items


@pytest.mark.parametrize(("policy", "survives"), [("Background", False), ("Orphan", True)])
def test_delete_owner_treats_dependents_by_policy(
    cluster: Cluster, policy: str, survives: bool
) -> None:
    name = policy.lower()
    owner = cluster.core.create_namespaced_config_map("default", config_map(f"owner-{name}"))
    dependent = config_map(f"dependent-{name}")
    dependent["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": f"owner-{name}",
            "uid": owner.metadata.uid,
        }
    ]
    cluster.core.create_namespaced_config_map("default", dependent)

    cluster.core.delete_namespaced_config_map(
        f"owner-{name}", "default", body=client.V1DeleteOptions(propagation_policy=policy)
    )

    def names() -> set[str]:
        return {i.metadata.name for i in cluster.core.list_namespaced_config_map("default").items}

    eventually(lambda: f"owner-{name}" not in names(), "the owner gone")
    if survives:
        kept = cluster.core.read_namespaced_config_map(f"dependent-{name}", "default")
        assert not kept.metadata.owner_references
    else:
        eventually(lambda: f"dependent-{name}" not in names(), "the dependent gone")


def test_patch_types_each_change_as_they_say(cluster: Cluster) -> None:
    deployment = {
        "metadata": {"name": "patched"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "one", "image": "i:1"}]},
            },
        },
    }
    cluster.apps.create_namespaced_deployment("default", deployment)
    container = {"name": "two", "image": "i:2"}

    # The client sends a dict as a strategic merge patch and a list as a JSON patch.
    strategic = {"spec": {"template": {"spec": {"containers": [container]}}}}
    merged = cluster.apps.patch_namespaced_deployment("patched", "default", strategic)
    names = [c.name for c in merged.spec.template.spec.containers]
    replaced = cluster.apps.patch_namespaced_deployment(
        "patched",
        "default",
        [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "i:9"}],
    )

    assert sorted(names) == ["one", "two"]
    assert replaced.spec.template.spec.containers[0].image == "i:9"
    assert replaced.metadata.generation == 3


def test_json_patch_with_failed_test_changes_nothing() -> None:
    document = {"a": 1}

    with pytest.raises(ApiError, match="testing path /a failed"):
        object_patches.json_patch(
            document, [{"op": "add", "path": "/b", "value": 2}, {"op": "test", "path": "/a"}]
        )

    assert document == {"a": 1}


def test_strategic_merge_with_delete_directive_removes_the_element() -> None:
    target = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}

    result = object_patches.strategic_merge(target, {"env": [{"name": "A", "$patch": "delete"}]})

    assert result == {"env": [{"name": "B", "value": "2"}]}


def test_server_side_apply_creates_then_merges_then_drops_what_it_owned(cluster: Cluster) -> None:
    dynamic_client = cluster.dynamic()
    config_maps = dynamic_client.resources.get(api_version="v1", kind="ConfigMap")

    def apply(**data: str) -> Any:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "applied", "namespace": "default"},
            "data": data,
        }
        return config_maps.server_side_apply(body=body, field_manager="test", force_conflicts=True)

    apply(a="1", b="2")
    cluster.core.patch_namespaced_config_map("applied", "default", {"data": {"other": "kept"}})
    result = apply(a="9")

    assert result.data.to_dict() == {"a": "9", "other": "kept"}


@pytest.mark.parametrize(
    ("api_version", "kind", "spec", "undeclared"),
    [
        (
            "v1",
            "Pod",
            {"containers": [{"name": "c", "image": "i", "resources": {"limit": {"cpu": "1"}}}]},
            '.spec.containers[name="c"].resources.limit',
        ),
        ("v1", "PersistentVolume", {"csi": {"driver": "d", "handle": "h"}}, ".spec.csi.handle"),
        ("kubeflow.org/v1", "PyTorchJob", {"elastic": {}}, ".spec.elastic"),
    ],
)
def test_server_side_apply_of_an_undeclared_field_is_a_500_that_names_it(
    cluster: Cluster, api_version: str, kind: str, spec: dict[str, Any], undeclared: str
) -> None:
    types = cluster.dynamic().resources
    body = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "typo", "namespace": "default"},
        "spec": spec,
    }

    with pytest.raises(ApiException) as refused:
        types.get(api_version=api_version, kind=kind).server_side_apply(
            body=body, field_manager="test"
        )

    message = body_of(refused.value)["message"]
    assert refused.value.status == 500
    assert message.startswith("failed to create typed patch object (")
    assert message.endswith(f"Kind={kind}): {undeclared}: field not declared in schema")


def test_dynamic_client_finds_custom_resources_once_their_crd_exists(
    empty_cluster: Cluster,
) -> None:
    with pytest.raises(dynamic.exceptions.ResourceNotFoundError):
        empty_cluster.dynamic().resources.get(api_version="kubeflow.org/v1", kind="PyTorchJob")
    extensions = client.ApiextensionsV1Api(empty_cluster.api)
    crd = extensions.create_custom_resource_definition(pytorchjob_crd())

    found = empty_cluster.dynamic().resources.get(api_version="kubeflow.org/v1", kind="PyTorchJob")

    assert found.name == "pytorchjobs"
    assert {c.type: c.status for c in crd.status.conditions}["Established"] == "True"


def test_custom_object_against_schema_is_invalid_with_field_path(cluster: Cluster) -> None:
    job = pytorchjob("wrong-type")
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = "two"

    with pytest.raises(ApiException) as caught:
        cluster.submit(job)

    assert caught.value.status == 422
    cause = body_of(caught.value)["details"]["causes"][0]
    assert cause["field"] == "spec.pytorchReplicaSpecs.Worker.replicas"
    assert 'must be of type integer: "string"' in cause["message"]


def test_custom_object_unknown_field_is_pruned_or_refused_when_strict(cluster: Cluster) -> None:
    job = pytorchjob("pruned", runPolicy={"suspend": True, "surprise": 1})

    stored = cluster.submit(job)
    with pytest.raises(ApiException) as caught:
        cluster.custom.create_namespaced_custom_object(
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


def test_watch_without_version_begins_with_what_exists_and_goes_on(cluster: Cluster) -> None:
    body = config_map("exists")
    body["metadata"]["labels"] = {"live": "yes"}
    cluster.core.create_namespaced_config_map("default", body)
    later = config_map("comes")
    later["metadata"]["labels"] = {"live": "yes"}
    seen: list[str] = []

    stream = watch.Watch()
    for event in stream.stream(
        cluster.core.list_namespaced_config_map,
        "default",
        label_selector="live=yes",
        timeout_seconds=10,
    ):
        seen.append(event["object"].metadata.name)
        if len(seen) == 1:
            cluster.core.create_namespaced_config_map("default", later)
        else:
            stream.stop()

    assert seen == ["exists", "comes"]


def test_watch_with_selector_reports_leaving_as_deleted(cluster: Cluster) -> None:
    body = config_map("leaves")
    body["metadata"]["labels"] = {"color": "red"}
    made = cluster.core.create_namespaced_config_map("default", body)
    cluster.core.patch_namespaced_config_map(
        "leaves", "default", {"metadata": {"labels": {"color": "blue"}}}
    )

    events = list(
        watch.Watch().stream(
            cluster.core.list_namespaced_config_map,
            "default",
            label_selector="color=red",
            resource_version=made.metadata.resource_version,
            timeout_seconds=1,
        )
    )

    assert [event["type"] for event in events] == ["DELETED"]


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
    objects = Objects(
        Store(), Catalog(), webhook_answers={"pytorchjobs.kubeflow.org": lambda: True}
    )
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


def test_concurrent_patches_lose_nothing(cluster: Cluster) -> None:
    cluster.core.create_namespaced_config_map("default", config_map("shared"))

    def write(index: int) -> None:
        cluster.core.patch_namespaced_config_map(
            "shared", "default", {"data": {f"key-{index}": "set"}}
        )

    threads = [threading.Thread(target=write, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(cluster.core.read_namespaced_config_map("shared", "default").data) == 8


def test_pod_specification_cannot_be_changed(cluster: Cluster) -> None:
    cluster.core.create_namespaced_pod("default", shell_pod("fixed", "sleep 30"))

    with pytest.raises(ApiException) as caught:
        cluster.core.patch_namespaced_pod("fixed", "default", {"spec": {"hostNetwork": True}})

    assert caught.value.status == 422
    assert "pod updates may not change fields" in body_of(caught.value)["message"]
    cluster.core.delete_namespaced_pod("fixed", "default", grace_period_seconds=0)
