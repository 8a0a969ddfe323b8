"""HTTP requests of the Kubernetes API, decoded: which object, which options, what body.

Used by the REST layer only. Knows paths, query parameters and content types; stores nothing.
"""

from __future__ import annotations

import base64
import json
import typing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml
from starlette.datastructures import QueryParams
from starlette.requests import Request

from stationmaster.local.cluster.api import decoding, errors, protobuf
from stationmaster.local.cluster.api.deletion import Propagation
from stationmaster.local.cluster.api.resources import Catalog, Object, Resource
from stationmaster.local.cluster.api.selectors import (
    Predicate,
    both,
    parse_field_selector,
    parse_label_selector,
)
from stationmaster.local.cluster.logs import LogQuery

_NAMESPACE_SUBRESOURCES = {"status", "finalize"}


@dataclass(frozen=True)
class Target:
    """What a path points at; an empty name means the collection."""

    resource: Resource
    namespace: str
    name: str
    subresource: str


def target_of(catalog: Catalog, group: str, version: str, rest: list[str]) -> Target:
    """Return the target of `/api/v1/<rest>` or `/apis/<group>/<version>/<rest>`.

    Raises:
        ApiError: 404 when no such type is served.
    """
    namespace = ""
    within = len(rest) >= 3 and rest[2] not in _NAMESPACE_SUBRESOURCES
    if rest[0] == "namespaces" and within:
        namespace, rest = rest[1], rest[2:]
    resource = catalog.find(group, version, rest[0])
    if resource is None or len(rest) > 3:
        raise errors.no_such_route()
    name, subresource = (*rest[1:], "", "")[:2]
    if subresource == "status" and not resource.has_status:
        raise errors.no_such_route()
    return Target(resource, namespace, name, subresource)


def flag(query: QueryParams, name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def number(query: QueryParams, name: str) -> int | None:
    text = query.get(name)
    if text in (None, ""):
        return None
    try:
        return int(text)
    except ValueError as exc:
        raise errors.bad_request(f'query parameter {name}="{text}" is not a number') from exc


def selector_of(query: QueryParams, resource: Resource) -> Predicate | None:
    labels, fields = query.get("labelSelector"), query.get("fieldSelector")
    return both(
        parse_label_selector(labels) if labels else None,
        parse_field_selector(fields, resource.key) if fields else None,
    )


def log_query(query: QueryParams) -> LogQuery:
    since = None
    seconds, moment = number(query, "sinceSeconds"), query.get("sinceTime")
    if seconds is not None:
        since = datetime.now(UTC) - timedelta(seconds=seconds)
    elif moment:
        since = datetime.fromisoformat(moment)
    return LogQuery(
        follow=flag(query, "follow"),
        tail_lines=number(query, "tailLines"),
        since=since,
        timestamps=flag(query, "timestamps"),
        limit_bytes=number(query, "limitBytes"),
    )


def wants_table(request: Request) -> bool:
    return "as=Table" in request.headers.get("accept", "")


async def body_of(request: Request) -> Any:
    """Return the decoded body, None when empty."""
    raw = await request.body()
    if not raw:
        return None
    content_type = request.headers.get("content-type", "application/json")
    if content_type == protobuf.MEDIA_TYPE:
        return protobuf.decode(raw)
    try:
        return _read(raw, is_yaml="yaml" in content_type)
    except (ValueError, yaml.YAMLError) as exc:
        raise errors.bad_request(f"the body of the request is not {content_type}: {exc}") from exc


def _read(raw: bytes, *, is_yaml: bool) -> Any:
    """Clients write most YAML as JSON, which is YAML too and is read a hundred times as fast."""
    try:
        return json.loads(raw)
    except ValueError:
        if not is_yaml:
            raise
        return yaml.safe_load(raw)


async def object_of(request: Request, resource: Resource) -> tuple[Object, list[str]]:
    """Return the body as an object of this type, and warnings about it for the client.

    Raises:
        ApiError: 400 for a body that is none, or has fields of a wrong type; with Strict field
            validation for unknown ones as well.
    """
    body = await body_of(request)
    if not isinstance(body, dict):
        raise errors.bad_request("the body of the request is not an object")
    if body.get("metadata") is None:
        body["metadata"] = {}
    mode = request.query_params.get("fieldValidation", "Warn")
    return decoding.decode(resource, body, mode)


async def delete_options(request: Request) -> dict[str, Any]:
    """Options of a delete; what the body says wins over the query."""
    query = request.query_params
    options: dict[str, Any] = {}
    grace = number(query, "gracePeriodSeconds")
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    if query.get("propagationPolicy"):
        options["propagationPolicy"] = query["propagationPolicy"]
    body = await body_of(request)
    if isinstance(body, dict):
        options.update({name: value for name, value in body.items() if value is not None})
    if query.get("dryRun"):
        options["dryRun"] = [query["dryRun"]]
    policy, offered = options.get("propagationPolicy"), typing.get_args(Propagation)
    if policy is not None and policy not in offered:
        listed = ", ".join(json.dumps(each) for each in (*offered, "nil"))
        cause = f"Unsupported value: {json.dumps(policy)}: supported values: {listed}"
        raise errors.invalid("DeleteOptions", "meta.k8s.io", "", [("propagationPolicy", cause)])
    return options


def page(items: list[Object], limit: int | None, token: str | None) -> tuple[list[Object], str]:
    """Return one page of a sorted list, and the token of the next ("" on the last).

    Raises:
        ApiError: 400 for a token that is none.
    """
    if token:
        try:
            after = tuple(json.loads(base64.urlsafe_b64decode(token)))
        except (ValueError, TypeError) as exc:
            raise errors.bad_request(f"continue key is not valid: {exc}") from exc
        items = [item for item in items if _place(item) > after]
    if not limit or len(items) <= limit:
        return items, ""
    following = json.dumps(_place(items[limit - 1]))
    return items[:limit], base64.urlsafe_b64encode(following.encode()).decode()


def _place(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
