"""What a real API server refuses, and how: one probe a behaviour, one server for all.

The sentences are those of Kubernetes 1.35, but for types, which are named as in its OpenAPI
document; the server is asked over HTTP with plain JSON, as it
answers clients that check nothing themselves.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_probes import (
    APPLY,
    BINDINGS,
    CLAIMS,
    DEPLOYMENTS,
    JOBS,
    MERGE,
    PODS,
    RBAC,
    REVIEWS,
    SERVICES,
    STRATEGIC,
    VOLUMES,
    Asked,
    claim,
    volume,
)
from api_probes import (
    CONFIG_MAPS as MAPS,
)


def config_map(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **fields}


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    first = {"name": "c", "image": "i", **(container or {})}
    return {"metadata": {"name": "p"}, "spec": {"containers": [first], **spec}}


def workload(**spec: Any) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    return {
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template, **spec},
    }


def job(pod_spec: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i"}]
    template = {"spec": {"containers": containers, "restartPolicy": "Never", **(pod_spec or {})}}
    return {"metadata": {"name": "j"}, "spec": {"template": template, "suspend": True, **spec}}


def service(*ports: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "spec": {"ports": list(ports), **spec}}


def labelled(key: str, value: Any) -> dict[str, Any]:
    return {"metadata": {"name": "m", "labels": {key: value}}}


def container(**fields: Any) -> dict[str, Any]:
    return pod(fields)


def amounts(requests: dict[str, str], limits: dict[str, str]) -> dict[str, Any]:
    return container(resources={"requests": requests, "limits": limits})


C = "spec.containers[0]"
LABEL = "name part must consist of alphanumeric characters"
CONTAINER, MOUNT = {"name": "c", "image": "i"}, {"name": "x", "mountPath": "/x"}
OTHERS = {"matchLabels": {"a": "c"}}
MORE_THAN_LIMIT = 'Invalid value: "2": must be less than or equal to cpu limit of 1'
UNSUPPORTED_PULL = 'Unsupported value: "No": supported values: "Always", "IfNotPresent", "Never"'
RESTARTS = "spec.template.spec.restartPolicy"
ENDS = 'Required value: valid values: "OnFailure", "Never"'
ENDS_NOT = 'Invalid value: "OnFailure": only "Never" is supported when podFailurePolicy is'
ONE_GPU, TWO_GPUS = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}
# (path, object, field of a cause, how its sentence begins)
REFUSED: list[tuple[str, Any, str, str]] = [
    (MAPS, config_map("Upper_Case"), "metadata.name", 'Invalid value: "Upper_Case": a lowercase'),
    (MAPS, labelled("bad key", "v"), "metadata.labels", f'Invalid value: "bad key": {LABEL}'),
    (MAPS, labelled("a", "x" * 64), "metadata.labels", f'Invalid value: "{"x" * 64}": must be no'),
    (MAPS, config_map("m", data={"a b": ""}), "data[a b]", 'Invalid value: "a b": a valid config'),
    (PODS, pod(containers=[]), "spec.containers", "Required value"),
    (PODS, container(image=""), f"{C}.image", "Required value"),
    (PODS, container(name="Upper"), f"{C}.name", 'Invalid value: "Upper": a lowercase RFC 1123'),
    (PODS, pod(containers=[CONTAINER] * 2), "spec.containers[1].name", 'Duplicate value: "c"'),
    (PODS, container(volumeMounts=[MOUNT]), f"{C}.volumeMounts[0].name", 'Not found: "x"'),
    (PODS, pod(volumes=[{"emptyDir": {}}]), "spec.volumes[0].name", "Required value"),
    (PODS, amounts({"cpu": "2"}, {"cpu": "1"}), f"{C}.resources.requests", MORE_THAN_LIMIT),
    (PODS, amounts(ONE_GPU, {}), f"{C}.resources.limits", "Required value: Limit must be set"),
    (PODS, amounts(ONE_GPU, TWO_GPUS), f"{C}.resources.requests", 'Invalid value: "1": must be eq'),
    (
        PODS,
        amounts({}, {"gpu": "1"}),
        f"{C}.resources.limits[gpu]",
        'Invalid value: "gpu": must be',
    ),
    (
        PODS,
        amounts({}, {"a/b": "1m"}),
        f"{C}.resources.limits[a/b]",
        'Invalid value: "1m": must be',
    ),
    (PODS, container(imagePullPolicy="No"), f"{C}.imagePullPolicy", UNSUPPORTED_PULL),
    (SERVICES, service(), "spec.ports", "Required value"),
    (SERVICES, service({"port": 1}, {"port": 2}), "spec.ports[0].name", "Required value"),
    (DEPLOYMENTS, workload(selector=OTHERS), "spec.template.metadata.labels", "Invalid value"),
    (DEPLOYMENTS, workload(selector=None), "spec.selector", "Required value"),
    (JOBS, job({"restartPolicy": "Always"}), RESTARTS, ENDS),
    (JOBS, job({"restartPolicy": "OnFailure"}, podFailurePolicy={"rules": []}), RESTARTS, ENDS_NOT),
    (VOLUMES, volume("v", csi=None), "spec", "Required value: must specify a volume type"),
    (VOLUMES, volume("v", csi={"driver": "d"}), "spec.csi.volumeHandle", "Required value"),
    (VOLUMES, volume("v", capacity=None), "spec.capacity", "Required value"),
    (
        VOLUMES,
        volume("v", accessModes=["All"]),
        "spec.accessModes",
        'Unsupported value: "All": ',
    ),
    (CLAIMS, claim("claim", resources={}), "spec.resources[storage]", "Required value"),
]


@pytest.mark.parametrize(
    ("path", "body", "place", "sentence"),
    REFUSED,
    ids=[f"{path.rpartition('/')[2]}-{place}-{how[:9]}" for path, _, place, how in REFUSED],
)
def test_object_that_contradicts_itself_is_invalid(
    asked: Asked, path: str, body: Any, place: str, sentence: str
) -> None:
    answer = asked("POST", path, body, dryRun="All")

    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    assert place in [field for field, _ in answer.causes]
    assert f"{place}: {sentence}" in answer.message


CANNOT = 'Pod in version "v1" cannot be handled as a Pod: '
# (object, sentence behind CANNOT): wrong whatever the client asks to be checked
MISTYPED: list[tuple[Any, str]] = [
    (container(env=[{"name": "A", "value": 1}]), f"number into {C}.env[0].value of type string"),
    (pod(activeDeadlineSeconds="1"), "string into spec.activeDeadlineSeconds of type integer"),
    (pod(hostNetwork="yes"), "string into spec.hostNetwork of type boolean"),
    (pod(containers={}), "object into spec.containers of type list"),
    (labelled("a", True), "bool into metadata.labels.a of type string"),
    (amounts({}, {"cpu": "much"}), "quantities must match the regular expression '"),
]


@pytest.mark.parametrize(("body", "sentence"), MISTYPED, ids=[each[1][:60] for each in MISTYPED])
def test_field_of_a_wrong_type_is_a_bad_request_in_every_mode(
    asked: Asked, body: Any, sentence: str
) -> None:
    for mode in ("Strict", "Ignore"):
        answer = asked("POST", PODS, body, dryRun="All", fieldValidation=mode)

        assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
        assert answer.message.startswith(CANNOT)
        assert sentence in answer.message


TYPO = {"metadata": {"name": "typo"}, "spec": {"containers": [{"name": "c", "image": "i", "x": 1}]}}
TYPO_PATH = 'unknown field "spec.containers[0].x"'


def test_unknown_field_is_refused_warned_of_or_dropped_as_the_client_asks(asked: Asked) -> None:
    answers = {
        mode: asked("POST", PODS, TYPO, dryRun="All", **({"fieldValidation": mode} if mode else {}))
        for mode in ("Strict", "Warn", "Ignore", "")
    }

    assert answers["Strict"].status == 400
    assert answers["Strict"].message == f"{CANNOT}strict decoding error: {TYPO_PATH}"
    for mode in ("Warn", "Ignore", ""):
        assert answers[mode].status == 201
        assert "x" not in answers[mode].body["spec"]["containers"][0]
    warning = f"299 - {json.dumps(TYPO_PATH)}"
    assert [answers[mode].headers.get("warning") for mode in ("Warn", "", "Ignore")] == [
        warning,
        warning,
        None,
    ]


@pytest.mark.parametrize("content_type", [MERGE, STRATEGIC])
def test_patch_to_an_unknown_or_wrong_field_is_invalid(asked: Asked, content_type: str) -> None:
    asked("POST", MAPS, config_map(f"patched-{len(content_type)}"))
    path = f"{MAPS}/patched-{len(content_type)}"

    unknown = asked(
        "PATCH", path, {"date": {}}, content_type=content_type, fieldValidation="Strict"
    )
    wrong = asked("PATCH", path, {"data": {"a": 1}}, content_type=content_type)

    assert unknown.status == wrong.status == 422
    assert unknown.message.startswith(' "" is invalid: patch: Invalid value: ')
    assert unknown.message.endswith('strict decoding error: unknown field "date"')
    assert wrong.message.endswith("cannot unmarshal number into data.a of type string")


def named(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "name": name}}


SOURCE = "persistentvolumesource"
BOUND = {"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r"}}
OTHER_LABELS = {"template": {"metadata": {"labels": {"x": "y"}}}}
# (collection, object, merge patch of its specification, field, sentence)
FIXED: list[tuple[str, Any, Any, str, str]] = [
    (PODS, pod(), {"hostNetwork": True}, "spec", "pod updates may not change fields"),
    (JOBS, job(), OTHER_LABELS, "spec.template", "field is immutable"),
    (JOBS, job(), {"completions": 3}, "spec.completions", "field is immutable"),
    (VOLUMES, volume("v"), {"csi": {"volumeHandle": "fs-2"}}, f"spec.{SOURCE}", f"{SOURCE} is im"),
    (CLAIMS, claim("c"), {"storageClassName": "b"}, "spec", "spec is immutable after creation ex"),
    (BINDINGS, BOUND, {}, "roleRef", "cannot change roleRef"),
]


@pytest.mark.parametrize(
    ("collection", "body", "patch", "place", "sentence"),
    FIXED,
    ids=[f"{each[0].rpartition('/')[2]}-{each[3]}" for each in FIXED],
)
def test_what_stays_as_it_was_made(
    asked: Asked, collection: str, body: Any, patch: Any, place: str, sentence: str
) -> None:
    name = f"fixed-{place.lower().replace('[0]', '').replace('.', '-')}"
    assert asked("POST", collection, named(body, name)).status == 201

    change = {"spec": patch} if patch else {"roleRef": {"name": "other"}}
    answer = asked("PATCH", f"{collection}/{name}", change, content_type=MERGE)

    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    assert place in [field for field, _ in answer.causes]
    assert sentence in answer.message
    asked("DELETE", f"{collection}/{name}")


@pytest.mark.parametrize(
    ("method", "path", "content_type", "code"),
    [
        ("DELETE", MAPS, "application/json", 405),
        ("PUT", f"{DEPLOYMENTS}/d/scale", "application/json", 405),
        ("PATCH", f"{MAPS}/json-patched", "application/json-patch+json", 415),
    ],
)
def test_what_is_not_emulated_is_refused(
    asked: Asked, method: str, path: str, content_type: str, code: int
) -> None:
    asked("POST", MAPS, config_map("json-patched"))

    assert asked(method, path, [], content_type=content_type).status == code


def rights(asked: Asked, name: str, *rules: dict[str, Any], wide: bool = False) -> Asked:
    """An account that has these rights, and a way to ask as it does."""
    asked("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
    kind = "ClusterRole" if wide else "Role"
    group = f"/apis/{RBAC}/v1{'' if wide else '/namespaces/default'}"
    role = {"metadata": {"name": name}, "rules": list(rules)}
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }
    plural = "clusterroles" if wide else "roles"
    assert asked("POST", f"{group}/{plural}", role).status == 201
    assert asked("POST", f"{group}/{plural[:-1]}bindings", binding).status == 201
    path = asked.cluster.state_dir / f"{name}.yaml"
    asked.cluster.local.write_account_kubeconfig(path, "default", name)
    return Asked(asked.cluster, token=path.read_text().partition("token: ")[2].split()[0])


def test_account_may_do_what_its_role_says_and_nothing_else(asked: Asked) -> None:
    reader = rights(
        asked,
        "reader",
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["one"], "verbs": ["*"]},
    )
    who = 'User "system:serviceaccount:default:reader" cannot'

    listed = reader("GET", PODS)
    named_one, other = reader("GET", f"{MAPS}/one"), reader("GET", f"{MAPS}/two")
    deleted = reader("DELETE", f"{PODS}/p")
    log = reader("GET", f"{PODS}/p/log")
    elsewhere = reader("GET", "/api/v1/namespaces/kube-system/pods")
    nodes = reader("GET", "/api/v1/nodes")
    as_other = reader("GET", PODS, headers={"Impersonate-User": "bob"})

    assert (listed.status, named_one.status) == (200, 404)
    assert other.message == (
        f'configmaps "two" is forbidden: {who} get resource "configmaps" in API group "" in the '
        'namespace "default"'
    )
    assert {each.status for each in (other, deleted, log, elsewhere, nodes, as_other)} == {403}
    assert f'users "bob" is forbidden: {who} impersonate resource "users"' in as_other.message
    assert f'{who} delete resource "pods" in API group ""' in deleted.message
    assert f'{who} get resource "pods/log" in API group ""' in log.message
    assert nodes.message == (
        f'nodes is forbidden: {who} list resource "nodes" in API group "" at the cluster scope'
    )
    assert nodes.body["details"] == {"kind": "nodes"}


def test_apply_of_a_new_object_needs_the_right_to_create_it(asked: Asked) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}
    patcher = rights(asked, "patcher", rule, wide=True)
    body = {"apiVersion": "v1", "kind": "ConfigMap", **config_map("applied-by-account")}
    path = f"{MAPS}/applied-by-account"

    refused = patcher("PATCH", path, body, content_type=APPLY, fieldManager="m")
    asked("POST", MAPS, config_map("applied-by-account"))
    taken = patcher("PATCH", path, body, content_type=APPLY, fieldManager="m")

    assert (refused.status, taken.status) == (403, 200)
    assert 'cannot create resource "configmaps"' in refused.message


def test_access_reviews_answer_from_the_same_rules(asked: Asked) -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    lister = rights(asked, "lister", rule)
    role = {"apiGroup": RBAC, "kind": "Role", "name": "lister"}
    group = {"apiGroup": RBAC, "kind": "Group", "name": "team-a"}
    body = {"metadata": {"name": "team-a"}, "roleRef": role, "subjects": [group]}
    assert asked("POST", BINDINGS, body).status == 201

    def review(verb: str, *, who: Asked = asked, **person: Any) -> Any:
        """What somebody may do, or who asks."""
        attributes = {"verb": verb, "resource": "pods", "namespace": "default"}
        path = REVIEWS.replace("selfsubject", "subject") if person else REVIEWS
        return who("POST", path, {"spec": {"resourceAttributes": attributes, **person}})

    def may(verb: str, **person: Any) -> bool:
        return bool(review(verb, **person).body["status"]["allowed"])

    account = "system:serviceaccount:default:lister"
    assert (may("list", who=lister), may("watch", who=lister), may("watch")) == (True, False, True)
    assert (may("list", user=account), may("watch", user=account)) == (True, False)
    assert (may("list", user="alice", groups=["team-a"]), may("list", user="alice")) == (
        True,
        False,
    )
    assert review("list", who=lister, user="alice").status == 403


def test_token_of_an_account_that_is_gone_is_unauthorized(asked: Asked) -> None:
    goner = rights(asked, "goner")
    assert goner("GET", PODS).status == 403

    asked("DELETE", "/api/v1/namespaces/default/serviceaccounts/goner")

    assert goner("GET", PODS).status == 401
