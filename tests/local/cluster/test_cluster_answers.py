"""What any Kubernetes API answers to requests that are wrong: a table, asked in its order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from api_probes import APPLY, CONFIG_MAPS, LEASES, MERGE, PODS, SECRETS, Asked

from tests.support.cluster_fixtures import eventually

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
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
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


TABLES = json.loads(Path(__file__).with_name("tables.json").read_text())


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case["path"])
def test_table_has_the_heads_and_cells_of_a_real_one(anywhere: Asked, case: Any) -> None:
    made = {"metadata": {"name": "shown"}, **case.get("made", {})}
    named = f"{case['path']}/shown" if "made" in case else case["path"]
    assert "made" not in case or anywhere("POST", case["path"], made).status == 201

    table = anywhere("GET", named, accept="application/json;as=Table;v=v1;g=meta.k8s.io").body

    columns = table["columnDefinitions"]
    heads = ["+" * min(each["priority"], 1) + each["name"].replace(" ", "-") for each in columns]
    assert " ".join(heads) == case["heads"]
    for row in table["rows"] or []:
        cells = [str(cell) for head, cell in zip(heads, row["cells"], strict=True) if head != "Age"]
        assert re.fullmatch(case.get("cells", ".*"), " ".join(cells).lower())


def test_who_one_is_and_what_one_may_is_answered(anywhere: Asked) -> None:
    def status(path: str, **spec: str) -> Any:
        return anywhere("POST", path, {"spec": spec}, headers=AS_BOB).body["status"]

    eventually(lambda: status(WHO) != "Failure", "rights of everybody, which a server makes late")
    rules = status(RULES, namespace="default")["resourceRules"]

    assert status(WHO) == {"userInfo": {"username": "bob", "groups": ["system:authenticated"]}}
    own = {f"selfsubject{each}reviews" for each in ("", "access", "rules")}
    assert {name for rule in rules for name in rule["resources"]} == own
