"""The REST surface of the local Kubernetes API: routes, verbs, watches, logs.

Served by `server.py`; used by the official Python client, its DynamicClient and kubectl. It
decodes, calls the registry and encodes; what the verbs mean is the registry's business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypedDict

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from local.cluster import logs
from local.cluster.api import discovery, errors, patches, requests, tables, typed, watch
from local.cluster.api.errors import ApiError
from local.cluster.api.registry import Registry, clone
from local.cluster.api.requests import Target
from local.cluster.api.resources import PODS, RETURNED_WHEN_DELETED, Object
from local.cluster.logs import ContainerLog
from local.loopback import LoopbackGuard, programs_only

LogFinder = Callable[[Object, str, bool], ContainerLog]
"""(pod, container or "", previous) to its log; raises ApiError when there is none to read."""


class WriteOptions(TypedDict):
    """How to write, as the query says."""

    dry_run: bool
    strict: bool


_OPEN_PATHS = {"healthz", "readyz", "livez", "version"}
_REVIEWS = {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Api:
    """Request handlers over one registry."""

    def __init__(self, registry: Registry, *, token: str, find_log: LogFinder) -> None:
        self._registry = registry
        self._token = token
        self._find_log = find_log
        self._applied: dict[tuple[str, str], Object] = {}
        self.closing = asyncio.Event()

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/{path:path}", self._handle, methods=_METHODS)],
            middleware=[Middleware(LoopbackGuard, rule=programs_only)],
        )

    async def _handle(self, request: Request) -> Response:
        try:
            return await self._route(request)
        except ApiError as exc:
            return JSONResponse(exc.status(), status_code=exc.code)
        except (KeyError, TypeError, AttributeError, ValueError) as exc:
            # Objects are not checked against a schema, so a malformed one shows here.
            wrong = errors.bad_request(f"the object is malformed: {type(exc).__name__}: {exc}")
            return JSONResponse(wrong.status(), status_code=wrong.code)

    async def _route(self, request: Request) -> Response:
        parts = [part for part in request.path_params["path"].split("/") if part]
        if parts and parts[0] not in _OPEN_PATHS:
            self._check_token(request)
        catalog = self._registry.catalog
        match parts:
            case ["version"]:
                return JSONResponse(discovery.VERSION)
            case ["healthz" | "readyz" | "livez", *_]:
                return PlainTextResponse("ok")
            case ["api"]:
                return JSONResponse(discovery.core_versions(request.url.netloc))
            case ["apis"]:
                return JSONResponse(discovery.group_list(catalog))
            case ["apis", group]:
                return _found(discovery.group(catalog, group))
            case ["api", "v1"]:
                return _found(discovery.resource_list(catalog, "", "v1"))
            case ["apis", group, version]:
                return _found(discovery.resource_list(catalog, group, version))
            case ["openapi", "v3"]:
                return JSONResponse(discovery.openapi_index(catalog))
            case ["openapi", "v3", "api", "v1"]:
                return _found(discovery.openapi_document(catalog, "", "v1"))
            case ["openapi", "v3", "apis", group, version]:
                return _found(discovery.openapi_document(catalog, group, version))
            case ["apis", "authorization.k8s.io", "v1", review] if review in _REVIEWS:
                return await self._review(request)
            case ["api", "v1", *rest]:
                return await self._verb(request, requests.target_of(catalog, "", "v1", rest))
            case ["apis", group, version, *rest]:
                return await self._verb(request, requests.target_of(catalog, group, version, rest))
            case _:
                raise errors.no_such_route()

    def _check_token(self, request: Request) -> None:
        if request.headers.get("authorization") != f"Bearer {self._token}":
            raise errors.unauthorized()

    async def _review(self, request: Request) -> Response:
        """Access reviews: the one local user may do everything."""
        review = await requests.object_of(request)
        review["status"] = {"allowed": True, "reason": "local mode has one user"}
        return JSONResponse(review, status_code=201)

    async def _verb(self, request: Request, target: Target) -> Response:
        match (request.method, bool(target.name), target.subresource):
            case ("GET", False, ""):
                if requests.flag(request.query_params, "watch"):
                    return self._watch(request, target)
                return self._list(request, target)
            case ("POST", False, ""):
                return await self._create(request, target)
            case ("DELETE", False, ""):
                return await self._delete_collection(request, target)
            case ("GET", True, "" | "status"):
                return self._get(request, target)
            case ("PUT", True, "" | "status"):
                return await self._update(request, target)
            case ("PATCH", True, "" | "status"):
                return await self._patch(request, target)
            case ("DELETE", True, ""):
                return await self._delete(request, target)
            case ("GET", True, "log") if target.resource.key == "pods":
                return self._log(request, target)
            case ("GET" | "PUT" | "PATCH", True, "scale") if target.resource.scale_path:
                return await self._scale(request, target)
            case (_, _, "exec" | "attach" | "portforward" | "proxy"):
                message = f"{target.subresource} is not offered by the local cluster"
                raise ApiError(501, "NotImplemented", message)
            case _:
                raise errors.method_not_allowed(
                    f"the server does not allow {request.method} on {target.resource.key}"
                    f"{'/' + target.subresource if target.subresource else ''}"
                )

    # Reading

    def _get(self, request: Request, target: Target) -> Response:
        obj = self._registry.get(target.resource, target.namespace, target.name)
        return JSONResponse(self._shown(request, target, obj))

    def _shown(self, request: Request, target: Target, obj: Object) -> Object:
        if not requests.wants_table(request):
            return obj
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        include = request.query_params.get("includeObject", "Metadata")
        return tables.table(target.resource, [obj], metadata, include=include)

    def _list(self, request: Request, target: Target) -> Response:
        query, resource = request.query_params, target.resource
        with self._registry.store.lock:
            items = self._registry.list(resource, target.namespace)
            store = self._registry.store
            versions = requests.Versions(present=store.version, oldest=store.oldest)
        selector = requests.selector_of(query)
        if selector is not None:
            items = [item for item in items if selector(item)]
        limit = requests.number(query, "limit")
        items, token = requests.page(items, limit, query.get("continue"), versions)
        metadata: Object = {"resourceVersion": str(versions.present)}
        if token:
            metadata["continue"] = token
        if requests.wants_table(request):
            include = query.get("includeObject", "Metadata")
            return JSONResponse(tables.table(resource, items, metadata, include=include))
        body = {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": items,
        }
        return JSONResponse(body)

    def _watch(self, request: Request, target: Target) -> Response:
        query, resource = request.query_params, target.resource
        if requests.flag(query, "sendInitialEvents"):
            cause = ("sendInitialEvents", "Forbidden: streaming lists are not offered")
            raise errors.invalid("ListOptions", "meta.k8s.io", "", [cause])
        since = query.get("resourceVersion", "")
        if since and not since.isdigit():
            raise errors.bad_request(f'resourceVersion="{since}" is not a number')
        timeout = requests.number(query, "timeoutSeconds")
        asked = watch.WatchRequest(
            resource=resource.key,
            namespace=target.namespace,
            selector=requests.selector_of(query),
            since=since,
            timeout_s=None if timeout is None else float(timeout),
            bookmarks=requests.flag(query, "allowWatchBookmarks"),
            kind=(resource.api_version, resource.kind),
        )
        return StreamingResponse(
            self._watch_lines(request, target, asked), media_type="application/json"
        )

    async def _watch_lines(
        self, request: Request, target: Target, asked: watch.WatchRequest
    ) -> AsyncIterator[bytes]:
        async for kind, obj in watch.stream(self._registry.store, asked, self.closing):
            shown = obj if kind in ("ERROR", "BOOKMARK") else self._shown(request, target, obj)
            yield json.dumps({"type": kind, "object": shown}).encode() + b"\n"

    def _log(self, request: Request, target: Target) -> Response:
        query = request.query_params
        pod = self._registry.get(PODS, target.namespace, target.name)
        previous = requests.flag(query, "previous")
        log = self._find_log(pod, query.get("container", ""), previous)
        chunks = logs.stream(log, requests.log_query(query), self.closing)
        return StreamingResponse(chunks, media_type="text/plain")

    # Writing

    async def _create(self, request: Request, target: Target) -> Response:
        body = await requests.object_of(request)
        created = self._registry.create(
            target.resource, body, namespace=target.namespace, **_write_options(request)
        )
        return JSONResponse(self._shown(request, target, created), status_code=201)

    async def _update(self, request: Request, target: Target) -> Response:
        body = await requests.object_of(request)
        metadata = body["metadata"]
        if metadata.setdefault("name", target.name) != target.name:
            raise errors.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL "
                f"({target.name})"
            )
        metadata["namespace"] = target.namespace
        updated = self._registry.update(
            target.resource, body, subresource=target.subresource, **_write_options(request)
        )
        return JSONResponse(self._shown(request, target, updated))

    async def _patch(self, request: Request, target: Target) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0]
        patch = await requests.body_of(request)
        if content_type == patches.APPLY_PATCH:
            return self._apply(request, target, patch)
        registry = self._registry
        with registry.store.lock:
            current = registry.get(target.resource, target.namespace, target.name)
            patched = _patched(target, content_type, clone(current), patch)
            _keep_version(patched, patch, current)
            updated = registry.update(
                target.resource,
                patched,
                subresource=target.subresource,
                **_write_options(request),
            )
        return JSONResponse(self._shown(request, target, updated))

    def _apply(self, request: Request, target: Target, applied: Any) -> Response:
        if not isinstance(applied, dict):
            raise errors.bad_request("the applied configuration is not an object")
        registry, resource = self._registry, target.resource
        manager = request.query_params.get("fieldManager", "")
        if not manager:
            raise errors.bad_request("PatchOptions is invalid: fieldManager: Required value")
        applied.setdefault("metadata", {})["name"] = target.name
        typed.check_applied(resource, applied, namespace=target.namespace)
        options = _write_options(request)
        with registry.store.lock:
            current = registry.find(resource, target.namespace, target.name)
            if current is None:
                result = registry.create(resource, applied, namespace=target.namespace, **options)
            else:
                owner = (current["metadata"]["uid"], manager)
                before = self._applied.get(owner, {})
                merged = patches.apply(clone(current), before, applied)
                merged["metadata"].setdefault("namespace", target.namespace)
                result = registry.update(
                    resource, merged, subresource=target.subresource, **options
                )
            if not options["dry_run"]:
                self._applied[result["metadata"]["uid"], manager] = clone(applied)
        code = 201 if current is None else 200
        return JSONResponse(self._shown(request, target, result), status_code=code)

    async def _delete(self, request: Request, target: Target) -> Response:
        options = await requests.delete_options(request)
        last, gone = self._registry.delete(
            target.resource,
            target.namespace,
            target.name,
            grace_s=options.get("gracePeriodSeconds"),
            propagation=options.get("propagationPolicy", "Background"),
            uid=(options.get("preconditions") or {}).get("uid") or "",
            dry_run=bool(options.get("dryRun")),
        )
        if not gone or target.resource.key in RETURNED_WHEN_DELETED:
            return JSONResponse(last)
        details: Object = {"name": target.name, "kind": target.resource.plural}
        if target.resource.group:
            details["group"] = target.resource.group
        details["uid"] = last["metadata"]["uid"]
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return JSONResponse({**status, "details": details})

    async def _delete_collection(self, request: Request, target: Target) -> Response:
        options = await requests.delete_options(request)
        selector = requests.selector_of(request.query_params)
        resource = target.resource
        with self._registry.store.lock:
            items = self._registry.list(resource, target.namespace)
            doomed = [item for item in items if selector is None or selector(item)]
            for item in doomed:
                metadata = item["metadata"]
                self._registry.delete(
                    resource,
                    metadata.get("namespace", ""),
                    metadata["name"],
                    grace_s=options.get("gracePeriodSeconds"),
                    propagation=options.get("propagationPolicy", "Background"),
                    dry_run=bool(options.get("dryRun")),
                )
        body = {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(self._registry.store.version)},
            "items": doomed,
        }
        return JSONResponse(body)

    async def _scale(self, request: Request, target: Target) -> Response:
        registry, path = self._registry, target.resource.scale_path.split(".")
        body = None if request.method == "GET" else await requests.body_of(request)
        with registry.store.lock:
            obj = clone(registry.get(target.resource, target.namespace, target.name))
            holder = obj
            for part in path[:-1]:
                holder = holder.setdefault(part, {})
            scale = _scale_object(obj, holder.get(path[-1], 1))
            if body is not None:
                if request.headers.get("content-type", "").startswith(patches.JSON_PATCH):
                    wanted = patches.json_patch(scale, body)
                else:
                    wanted = patches.merge(scale, body)
                holder[path[-1]] = int(wanted["spec"]["replicas"])
                updated = registry.update(target.resource, obj, **_write_options(request))
                scale = _scale_object(updated, holder[path[-1]])
        return JSONResponse(scale)


def _found(document: Object | None) -> Response:
    if document is None:
        raise errors.no_such_route()
    return JSONResponse(document)


def _write_options(request: Request) -> WriteOptions:
    query = request.query_params
    return {
        "dry_run": bool(query.get("dryRun")),
        "strict": query.get("fieldValidation") == "Strict",
    }


def _patched(target: Target, content_type: str, current: Object, patch: Any) -> Object:
    match content_type:
        case patches.JSON_PATCH:
            result: Object = patches.json_patch(current, patch)
        case patches.MERGE_PATCH:
            result = patches.merge(current, patch)
        case patches.STRATEGIC_PATCH if not target.resource.custom:
            result = patches.strategic_merge(current, patch)
        case _:
            raise errors.unsupported_media_type(
                f'"{content_type}" is not a patch type of {target.resource.key}; use '
                f"{patches.MERGE_PATCH}, {patches.JSON_PATCH} or {patches.APPLY_PATCH}"
            )
    return result


def _keep_version(patched: Object, patch: Any, current: Object) -> None:
    """A patch is conditional only when it names a resourceVersion itself."""
    named = isinstance(patch, dict) and (patch.get("metadata") or {}).get("resourceVersion")
    if not named:
        patched["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]


def _scale_object(obj: Object, replicas: int) -> Object:
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": replicas},
        "status": {"replicas": (obj.get("status") or {}).get("replicas", 0)},
    }
