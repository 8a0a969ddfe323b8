"""What any Kubernetes API answers to requests that are wrong: a table, asked in its order."""

from __future__ import annotations

from typing import Any

import pytest
from api_probes import APPLY, CONFIG_MAPS, DEPLOYMENTS, LEASES, MERGE, PODS, SECRETS, Asked

SEEN = f"{CONFIG_MAPS}/seen"
ACCOUNT = "system:serviceaccount:default:default"
PATCH: dict[str, Any] = {"content_type": MERGE}
AN_APPLY: dict[str, Any] = {"content_type": APPLY, "fieldManager": "m", "force": "true"}
GHOST = {"serviceAccountName": "ghost", "containers": [{"name": "c", "image": "i"}]}
POLICIES = 'supported values: "Foreground", "Background", "Orphan", "nil"'
AS_BOB = {"Impersonate-User": "bob"}
IN_MASTERS = AS_BOB | {"Impersonate-Group": "system:masters"}
AS_ACCOUNT = {"Impersonate-User": ACCOUNT}
UNREAD = "unable to parse requirement: "
MICRO = 'as "2006-01-02T15:04:05.000000Z07:00"'


def config(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen", **metadata}}


def renewed(at: str) -> dict[str, Any]:
    return {"metadata": {"generateName": "lease-"}, "spec": {"renewTime": at}}


# (method, path, body, options, code, what its message has)
CASES: list[tuple[str, str, Any, dict[str, Any], int, str]] = [
    ("POST", CONFIG_MAPS, config(labels={"a": "b"}), {}, 201, ""),
    ("POST", CONFIG_MAPS, config(), {}, 409, 'configmaps "seen" already exists'),
    ("POST", "/api/v1/namespaces/no/configmaps", config(), {}, 404, 'namespaces "no" not found'),
    ("GET", "/api/v1/namespaces/default/things", None, {}, 404, ""),
    ("PATCH", SEEN, config(), {"content_type": APPLY}, 422, "is required for apply patch"),
    ("PATCH", SEEN, config() | {"apiVersion": "v2"}, AN_APPLY, 400, ""),
    ("PATCH", SEEN, config(managedFields=[]), AN_APPLY, 400, "managedFields must be nil"),
    *(
        ("GET", CONFIG_MAPS, None, {"labelSelector": text}, code, sentence)
        for text, code, sentence in (
            ("a in (b), !c, a==b", 200, ""),
            ("a in b", 400, UNREAD),
            ("a in (x", 400, UNREAD),
            ("-a", 400, UNREAD),
            ("a=b=c", 400, "found '"),
        )
    ),
    ("GET", CONFIG_MAPS, None, {"fieldSelector": "a"}, 400, "selector: 'a'; can't understand 'a'"),
    ("GET", CONFIG_MAPS, None, {"fieldSelector": "type=a"}, 400, "is not a known field selector"),
    ("DELETE", SEEN, {"preconditions": {"resourceVersion": "1"}}, {}, 409, "cannot be fulfilled"),
    ("DELETE", SEEN, {"preconditions": {"uid": "other"}}, {}, 409, "cannot be fulfilled"),
    ("DELETE", SEEN, None, {"propagationPolicy": "Aside"}, 422, f'Aside": {POLICIES}'),
    ("POST", SECRETS, {"metadata": {"name": "s"}, "data": {"a": "###"}}, {}, 400, "base64 data"),
    ("POST", PODS, {"metadata": {"name": "p"}, "spec": GHOST}, {}, 403, "default/ghost"),
    ("PATCH", SEEN, {"kind": "Secret"}, PATCH, 422, "Invalid"),
    ("PATCH", SEEN, {"apiVersion": "v2"}, PATCH, 422, "Invalid"),
    ("PATCH", SEEN, {"metadata": {"name": "other"}}, PATCH, 400, "the name on the URL (seen)"),
    ("PATCH", SEEN, {"metadata": {"namespace": "x"}}, PATCH, 400, "does not match the namespace"),
    ("PUT", SEEN, config() | {"kind": "Secret"}, {}, 400, "cannot be handled as a ConfigMap"),
    ("GET", f"{SEEN}/status", None, {}, 404, ""),
    ("GET", "/api/v1/namespaces/default/status", None, {}, 200, ""),
    ("POST", LEASES, renewed("2026-01-01T00:00:00.000001+01:00"), {}, 201, ""),
    ("POST", LEASES, renewed("2026-01-01T00:00:00Z"), {}, 400, MICRO),
    ("GET", PODS, None, {"headers": AS_BOB}, 403, 'User "bob" cannot list resource "pods"'),
    ("GET", PODS, None, {"headers": AS_ACCOUNT}, 403, f'User "{ACCOUNT}" cannot list'),
    ("GET", PODS, None, {"headers": IN_MASTERS}, 200, ""),
    ("GET", SEEN, None, {}, 200, ""),
]


@pytest.mark.parametrize(("method", "path", "body", "options", "code", "sentence"), CASES)
def test_answer(
    anywhere: Asked, method: str, path: str, body: Any, options: Any, code: int, sentence: str
) -> None:
    answer = anywhere(method, path, body, **options)

    assert answer.status == code
    assert not sentence or sentence in answer.message


def test_last_label_and_the_namespace_may_go_from_an_apply(anywhere: Asked) -> None:
    path = f"{CONFIG_MAPS}/bare"
    first = anywhere("PATCH", path, config(name="bare", labels={"a": "b"}), **AN_APPLY)
    second = anywhere("PATCH", path, config(name="bare", namespace="default"), **AN_APPLY)
    third = anywhere("PATCH", path, config(name="bare"), **AN_APPLY)

    assert third.body == second.body  # nothing to write
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
    "/apis/apps/v1/daemonsets": "Name Desired Current Ready Up-to-date Available Node-Selector "
    f"{WORKLOAD}",
    "/apis/batch/v1/jobs": f"Name Status Completions Duration {WORKLOAD}",
}


@pytest.mark.parametrize("path", COLUMNS)
def test_table_has_the_heads_of_a_real_one(anywhere: Asked, path: str) -> None:
    table = anywhere("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io").body

    columns = [
        (each["name"].replace(" ", "-"), each["priority"]) for each in table["columnDefinitions"]
    ]
    assert " ".join("+" * min(wide, 1) + name for name, wide in columns) == COLUMNS[path]
    assert {len(row["cells"]) for row in table["rows"] or []} <= {len(columns)}
