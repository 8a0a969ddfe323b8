"""What reads: one object, a list, a watch, the log of a container.

Used by `rest.py`, which routes. Decodes the query, asks `objects.py`, encodes the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from stationmaster.local.cluster import logs
from stationmaster.local.cluster.api import errors, requests, tables, watch
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.requests import Target
from stationmaster.local.cluster.api.resources import PODS, Object
from stationmaster.local.cluster.logs import ContainerLog

LogFinder = Callable[[Object, str, bool], ContainerLog | None]
"""(pod, container or "", previous) to its log, None before the pod has a node.

Raises ApiError when there is none to read.
"""


def shown(request: Request, target: Target, obj: Object) -> Object:
    """Return an object as the client asked to see it: as it is, or as a row of a table."""
    if not requests.wants_table(request):
        return obj
    metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
    include = request.query_params.get("includeObject", "Metadata")
    return tables.table(target.resource, [obj], metadata, include=include)


class Reader:
    """Answers GET requests; streams end when `closing` is set."""

    def __init__(self, objects: Objects, *, find_log: LogFinder, closing: asyncio.Event) -> None:
        self._objects = objects
        self._find_log = find_log
        self._closing = closing

    def find(self, target: Target) -> Object | None:
        return self._objects.find(target.resource, target.namespace, target.name)

    def get(self, request: Request, target: Target) -> Response:
        obj = self._objects.get(target.resource, target.namespace, target.name)
        return JSONResponse(shown(request, target, obj))

    def list_objects(self, request: Request, target: Target) -> Response:
        query, resource = request.query_params, target.resource
        with self._objects.store.lock:
            items = self._objects.list(resource, target.namespace)
            version = self._objects.store.version
        selector = requests.selector_of(query, resource)
        if selector is not None:
            items = [item for item in items if selector(item)]
        limit = requests.number(query, "limit")
        items, token = requests.page(items, limit, query.get("continue"))
        metadata: Object = {"resourceVersion": str(version)}
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

    def watch_objects(self, request: Request, target: Target) -> Response:
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
            selector=requests.selector_of(query, resource),
            since=since,
            timeout_s=None if timeout is None else float(timeout),
        )
        return StreamingResponse(
            self._watch_lines(request, target, asked), media_type="application/json"
        )

    async def _watch_lines(
        self, request: Request, target: Target, asked: watch.WatchRequest
    ) -> AsyncIterator[bytes]:
        async for kind, obj in watch.stream(self._objects.store, asked, self._closing):
            seen = obj if kind == "ERROR" else shown(request, target, obj)
            yield json.dumps({"type": kind, "object": seen}).encode() + b"\n"

    def log(self, request: Request, target: Target) -> Response:
        query = request.query_params
        pod = self._objects.get(PODS, target.namespace, target.name)
        previous = requests.flag(query, "previous")
        log = self._find_log(pod, query.get("container", ""), previous)
        if log is None:
            # Source: kubernetes, pkg/registry/core/pod/strategy.go, LogLocation: no location, and
            # so no content.
            return Response(status_code=204)
        chunks = logs.stream(log, requests.log_query(query), self._closing)
        return StreamingResponse(chunks, media_type="text/plain")
