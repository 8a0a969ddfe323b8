"""What writes: create, replace, patch, apply, delete.

Used by `rest.py`, which routes. Decodes the request, calls `objects.py`, encodes what was stored.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stationmaster.local.cluster.api import (
    applying,
    decoding,
    errors,
    requests,
    resources,
)
from stationmaster.local.cluster.api.deletion import Propagation
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.reading import shown
from stationmaster.local.cluster.api.requests import Target
from stationmaster.local.cluster.api.resources import RETURNED_WHEN_DELETED, Object, Resource
from stationmaster.local.cluster.api.types import declared_type


class Writer:
    """Answers requests that change objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def create(self, request: Request, target: Target) -> Response:
        body, warnings = await requests.object_of(request, target.resource)
        dry_run = bool(request.query_params.get("dryRun"))
        created = self._objects.create(
            target.resource, body, namespace=target.namespace, dry_run=dry_run
        )
        return _answer(shown(request, target, created), warnings, code=201)

    async def update(self, request: Request, target: Target) -> Response:
        body, warnings = await requests.object_of(request, target.resource)
        _check_place(target, body)
        dry_run = bool(request.query_params.get("dryRun"))
        updated = self._objects.update(
            target.resource, body, subresource=target.subresource, dry_run=dry_run
        )
        return _answer(shown(request, target, updated), warnings)

    async def patch(self, request: Request, target: Target) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0]
        patch = await requests.body_of(request)
        mode = request.query_params.get("fieldValidation", "Warn")
        if content_type == applying.APPLY_PATCH:
            return self._apply(request, target, patch)
        objects = self._objects
        with objects.store.lock:
            current = objects.get(target.resource, target.namespace, target.name)
            patched = _patched(target, content_type, clone(current), patch)
            patched, warnings = decoding.decode(target.resource, patched, mode, patched=True)
            _check_place(target, patched)
            _keep_version(patched, patch, current)
            dry_run = bool(request.query_params.get("dryRun"))
            updated = objects.update(
                target.resource, patched, subresource=target.subresource, dry_run=dry_run
            )
        return _answer(shown(request, target, updated), warnings)

    def _apply(self, request: Request, target: Target, applied: Any) -> Response:
        if not isinstance(applied, dict):
            raise errors.bad_request("the applied configuration is not an object")
        objects, resource = self._objects, target.resource
        _check_identity(resource, applied)
        namespace = (applied.get("metadata") or {}).get("namespace", "")
        _check_place(target, applied)
        applying.check_applied(resource, applied, namespace=namespace)
        query = request.query_params
        if not query.get("fieldManager"):
            cause = ("fieldManager", "Required value: is required for apply patch")
            raise errors.invalid("PatchOptions", "meta.k8s.io", "", [cause])
        with objects.store.lock:
            current = objects.find(resource, target.namespace, target.name)
            if current is None and target.subresource:
                raise errors.not_found(resource.key, target.name)
            merged, managed = applying.apply(resource, current, applied, query["fieldManager"])
            options: dict[str, Any] = {"dry_run": bool(query.get("dryRun")), "managed": managed}
            if current is None:
                result = objects.create(resource, merged, namespace=target.namespace, **options)
            else:
                part = target.subresource
                result = objects.update(resource, merged, subresource=part, **options)
        code = 201 if current is None else 200
        return JSONResponse(shown(request, target, result), status_code=code)

    async def delete(self, request: Request, target: Target) -> Response:
        options = await requests.delete_options(request)
        propagation, warnings = _propagation(target.resource, options)
        last, gone = self._objects.delete(
            target.resource,
            target.namespace,
            target.name,
            grace_s=options.get("gracePeriodSeconds"),
            propagation=propagation,
            preconditions=options.get("preconditions"),
            dry_run=bool(options.get("dryRun")),
        )
        if not gone or target.resource.key in RETURNED_WHEN_DELETED:
            return _answer(last, warnings)
        details: Object = {"name": target.name, "kind": target.resource.plural}
        if target.resource.group:
            details["group"] = target.resource.group
        details["uid"] = last["metadata"]["uid"]
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return _answer({**status, "details": details}, warnings)


def _check_place(target: Target, obj: Object) -> None:
    """Refuse the object of another path. Source: apiserver, pkg/endpoints/handlers/rest.go."""
    obj["metadata"] = metadata = obj.get("metadata") or {}
    for field, wanted in (("name", target.name), ("namespace", target.namespace)):
        if wanted and metadata.setdefault(field, wanted) != wanted:
            place = "name on the URL" if field == "name" else "namespace on the request"
            raise errors.bad_request(
                f"the {field} of the object ({metadata[field]}) does not match the {place} "
                f"({wanted})"
            )


def _check_identity(resource: Resource, applied: Object) -> None:
    """Source: apimachinery, util/managedfields/internal/structuredmerge.go, Apply."""
    version = applied.get("apiVersion", "")
    if version != resource.api_version:
        raise errors.bad_request(
            "Incorrect version specified in apply patch. Specified patch version: "
            f"{version}, expected: {resource.api_version}"
        )
    if (applied.get("metadata") or {}).get("managedFields") is not None:
        raise errors.bad_request("metadata.managedFields must be nil")


def _answer(body: Object, warnings: list[str], *, code: int = 200) -> Response:
    """Return what was stored, with warnings in headers as clients show them."""
    headers = {}
    if warnings:
        quoted = [json.dumps(warning) for warning in warnings]
        headers["Warning"] = ", ".join(f"299 - {warning}" for warning in quoted)
    return JSONResponse(body, status_code=code, headers=headers)


def _propagation(resource: Resource, options: Object) -> tuple[Propagation, list[str]]:
    """Return what becomes of the dependents, and warnings about it.

    Source: kubernetes, pkg/registry/batch/job: strategy.go, storage/storage.go.
    """
    named: Propagation | None = options.get("propagationPolicy")
    if named is not None:
        return named, []
    if resource is not resources.JOBS:
        return "Background", []
    warning = (
        "child pods are preserved by default when jobs are deleted; set "
        "propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress "
        "this warning"
    )
    return "Orphan", [warning]


def _patched(target: Target, content_type: str, current: Object, patch: Any) -> Object:
    match content_type:
        case applying.MERGE_PATCH:
            result: Object = applying.merge_patch(current, patch)
        case applying.STRATEGIC_PATCH if not target.resource.custom:
            declared = declared_type(target.resource)
            result = applying.strategic_merge(current, patch, declared)
        case _:
            raise errors.unsupported_media_type(
                f'"{content_type}" is not a patch type of {target.resource.key}; use '
                f"{applying.MERGE_PATCH} or {applying.APPLY_PATCH}"
            )
    return result


def _keep_version(patched: Object, patch: Any, current: Object) -> None:
    """Make a patch conditional only where it names a resourceVersion itself."""
    named = isinstance(patch, dict) and (patch.get("metadata") or {}).get("resourceVersion")
    if not named:
        patched["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
