"""What the server says about itself: version, groups, resources, and enough OpenAPI for kubectl.

Called by the REST layer. kubectl needs OpenAPI only to learn whether the server checks unknown
fields (`fieldValidation`), so the documents describe patches and no schemas.
"""

from __future__ import annotations

from typing import Any

from stationmaster.local.cluster.api.resources import VERBS, Catalog, Object, Resource

VERSION: Object = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.2-stationmaster",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "local",
}

# What is asked and not stored, by group.
_REVIEWS = {
    "authentication.k8s.io": "SelfSubjectReview",
    "authorization.k8s.io": "SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
}
REVIEWS = {f"{kind.lower()}s": group for group, of in _REVIEWS.items() for kind in of.split()}
# What everybody may do. Source: kubernetes, bootstrappolicy/policy.go: system:basic-user and
# system:discovery.
EVERYBODYS_RULES: list[Object] = [
    *(
        {"verbs": ["create"], "apiGroups": [group], "resources": [plural]}
        for plural, group in REVIEWS.items()
        if plural.startswith("self")
    ),
    {"verbs": ["get"], "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/openapi/*"]},
]


def core_versions(host: str) -> Object:
    """Answer `GET /api`."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    }


def group_list(catalog: Catalog) -> Object:
    """Answer `GET /apis`."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, versions) for name, versions in all_groups(catalog).items()],
    }


def all_groups(catalog: Catalog) -> dict[str, list[str]]:
    """Named groups with their versions, the ones of virtual resources included."""
    return {**catalog.groups(), **{group: ["v1"] for group in _REVIEWS}}


def _group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(catalog: Catalog, group_name: str, version: str) -> Object | None:
    """Answer `GET /api/v1` and `GET /apis/<group>/<version>`."""
    if version not in {**all_groups(catalog), "": ["v1"]}.get(group_name, []):
        return None
    rows: list[Object] = []
    for resource in catalog:
        if (resource.group, resource.version) == (group_name, version):
            rows.extend(_rows(resource))
    for kind in _REVIEWS.get(group_name, "").split():
        row = {"singularName": "", "namespaced": False, "kind": kind, "verbs": ["create"]}
        rows.append({"name": f"{kind.lower()}s", **row})
    api_version = f"{group_name}/{version}" if group_name else version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version,
        "resources": rows,
    }


def _rows(resource: Resource) -> list[Object]:
    main: Object = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(VERBS),
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
    }
    rows = [main]
    part: Object = {"singularName": "", "namespaced": resource.namespaced, "kind": resource.kind}
    if resource.has_status:
        verbs = ["get", "patch", "update"]
        rows.append({**part, "name": f"{resource.plural}/status", "verbs": verbs})
    if resource.key == "pods":
        rows.append({**part, "name": "pods/log", "verbs": ["get"]})
    return rows


def openapi_index(catalog: Catalog) -> Object:
    """Answer `GET /openapi/v3`."""
    paths = {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}
    for name, versions in catalog.groups().items():
        for version in versions:
            path = f"apis/{name}/{version}"
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}"}
    return {"paths": paths}


def openapi_document(catalog: Catalog, group_name: str, version: str) -> Object | None:
    """Answer `GET /openapi/v3/api/v1` and `GET /openapi/v3/apis/<group>/<version>`."""
    paths: dict[str, Any] = {}
    for resource in catalog:
        if (resource.group, resource.version) == (group_name, version):
            root = f"/apis/{group_name}/{version}" if group_name else f"/api/{version}"
            middle = "/namespaces/{namespace}" if resource.namespaced else ""
            paths[f"{root}{middle}/{resource.plural}/{{name}}"] = {"patch": _operation(resource)}
    if not paths:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": {}},
    }


def _operation(resource: Resource) -> Object:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return {
        "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": kind,
    }
