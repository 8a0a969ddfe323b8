"""What any Kubernetes API answers to requests that are wrong: a table, asked in its order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api_probes import APPLY, CONFIG_MAPS, DEPLOYMENTS, LEASES, MERGE, PODS, Answer, Asked, asking

SEEN = f"{CONFIG_MAPS}/seen"
ACCOUNT = "system:serviceaccount:default:default"
PATCH: dict[str, Any] = {"content_type": MERGE}
UNREAD = "unable to parse requirement: "
MICRO = 'as "2006-01-02T15:04:05.000000Z07:00"'


def config(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen", **metadata}}


def pods_as(user: str, **groups: str) -> dict[str, Any]:
    return {"headers": {"Impersonate-User": user, **groups}}


def renewed(at: str) -> dict[str, Any]:
    return {"metadata": {"generateName": "lease-"}, "spec": {"renewTime": at}}


def only_if(**preconditions: str) -> dict[str, Any]:
    return {"preconditions": preconditions}


# (method, path, body, options, code, what its message has)
CASES: list[tuple[str, str, Any, dict[str, Any], int, str]] = [
    ("POST", CONFIG_MAPS, config(labels={"a": "b"}), {}, 201, ""),
    *(
        ("GET", CONFIG_MAPS, None, {"labelSelector": text}, code, sentence)
        for text, code, sentence in (
            ("a in (b), !c, a==b", 200, ""),
            ("a in b", 400, UNREAD),
            ("a b", 400, UNREAD),
            ("a in (x", 400, UNREAD),
            ("-a", 400, UNREAD),
            ("a=b=c", 400, "found '"),
            ("=b", 400, "found '"),
            ("a,", 400, "found '"),
        )
    ),
    ("GET", CONFIG_MAPS, None, {"fieldSelector": "a"}, 400, "selector: 'a'; can't understand 'a'"),
    ("GET", CONFIG_MAPS, None, {"fieldSelector": "type=a"}, 400, "label not supported: type"),
    ("DELETE", SEEN, only_if(resourceVersion="1"), {}, 409, "cannot be fulfilled on"),
    ("DELETE", SEEN, only_if(uid="other"), {}, 409, "cannot be fulfilled on"),
    (
        *("DELETE", SEEN, None, {"propagationPolicy": "Sideways"}, 422),
        'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Sideways":'
        ' supported values: "Foreground", "Background", "Orphan", "nil"',
    ),
    ("PATCH", SEEN, {"kind": "Secret"}, PATCH, 422, "Invalid"),
    ("PATCH", SEEN, {"apiVersion": "v2"}, PATCH, 422, "Invalid"),
    ("PATCH", SEEN, {"metadata": {"name": "other"}}, PATCH, 400, "the name on the URL (seen)"),
    ("PATCH", SEEN, {"metadata": {"namespace": "x"}}, PATCH, 400, "does not match the namespace"),
    ("PUT", SEEN, config() | {"kind": "Secret"}, {}, 400, "cannot be handled as a ConfigMap"),
    ("GET", f"{SEEN}/status", None, {}, 404, ""),
    ("PATCH", f"{SEEN}/status", {}, PATCH, 404, ""),
    ("GET", "/api/v1/namespaces/default/status", None, {}, 200, ""),
    ("POST", LEASES, renewed("2026-01-01T00:00:00.000001+01:00"), {}, 201, ""),
    ("POST", LEASES, renewed("2026-01-01T00:00:00Z"), {}, 400, MICRO),
    ("POST", LEASES, renewed("2026-01-01T00:00:00.001Z"), {}, 400, MICRO),
    ("POST", LEASES, renewed("2026-01-01"), {}, 400, MICRO),
    ("GET", PODS, None, pods_as("bob"), 403, 'User "bob" cannot list resource "pods"'),
    ("GET", PODS, None, pods_as(ACCOUNT), 403, f'User "{ACCOUNT}" cannot list resource "pods"'),
    ("GET", PODS, None, pods_as("bob", **{"Impersonate-Group": "system:masters"}), 200, ""),
    ("GET", SEEN, None, {}, 200, ""),
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with asking(tmp_path_factory.mktemp("answers")) as server:
        yield server


@pytest.mark.parametrize(("method", "path", "body", "options", "code", "sentence"), CASES)
def test_answer(
    asked: Asked, method: str, path: str, body: Any, options: Any, code: int, sentence: str
) -> None:
    answer = asked(method, path, body, **options)

    assert answer.status == code
    assert not sentence or sentence in answer.message


def test_last_label_and_the_namespace_may_go_from_an_apply(asked: Asked) -> None:
    options = {"content_type": APPLY, "fieldManager": "m", "force": "true"}
    first = asked("PATCH", SEEN, config(namespace="default", labels={"a": "b"}), **options)
    second: Answer = asked("PATCH", SEEN, config(), **options)

    assert second.status == 200
    assert "labels" not in second.body["metadata"]
    # Who applies owns neither the type nor the place.
    fields = [each["fieldsV1"] for each in first.body["metadata"]["managedFields"]]
    assert {"f:metadata": {"f:labels": {"f:a": {}}}} in fields


WORKLOAD = "Age +Containers +Images +Selector"
COLUMNS = {
    PODS: "Name Ready Status Restarts Age +IP +Node +Nominated-Node +Readiness-Gates",
    "/api/v1/nodes": "Name Status Roles Age Version +Internal-IP +External-IP +OS-Image "
    "+Kernel-Version +Container-Runtime",
    DEPLOYMENTS: f"Name Ready Up-to-date Available {WORKLOAD}",
    "/apis/apps/v1/replicasets": f"Name Desired Current Ready {WORKLOAD}",
    "/apis/apps/v1/daemonsets": "Name Desired Current Ready Up-to-date Available Node-Selector "
    f"{WORKLOAD}",
    "/apis/batch/v1/jobs": f"Name Status Completions Duration {WORKLOAD}",
    "/api/v1/events": "Last-Seen Type Reason Object +Subobject +Source Message +First-Seen +Count "
    "+Name",
    "/api/v1/persistentvolumeclaims": "Name Status Volume Capacity Access-Modes StorageClass "
    "VolumeAttributesClass Age +VolumeMode",
    LEASES: "Name Holder Age",
}


@pytest.mark.parametrize("path", COLUMNS)
def test_table_has_the_heads_of_a_real_one(asked: Asked, path: str) -> None:
    table = asked("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io").body

    columns = [
        (each["name"].replace(" ", "-"), each["priority"]) for each in table["columnDefinitions"]
    ]
    assert " ".join("+" * min(wide, 1) + name for name, wide in columns) == COLUMNS[path]
    assert {len(row["cells"]) for row in table["rows"] or []} <= {len(columns)}
