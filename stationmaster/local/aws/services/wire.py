"""Turns HTTP requests into API operations and back, from botocore's own service models.

`identify` names the operation of any request; `NativeService` serves those of this endpoint's own
services.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote

import botocore.session
from botocore.model import OperationModel, ServiceModel

# Signing names whose botocore model has another name, for the services that local mode uses.
_MODELS = {"states": "stepfunctions", "tagging": "resourcegroupstaggingapi"}
_REST_SERVICES = frozenset({"eks", "lambda", "scheduler", "s3"})


class ApiError(Exception):
    """An error that a service answers with."""

    def __init__(self, code: str, message: str, *, status: int = 400, **members: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.members = members


@dataclass(frozen=True)
class ApiRequest:
    """One HTTP request, as far as an API operation needs it."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class ApiResponse:
    """One HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


@lru_cache(maxsize=1)
def _session() -> Any:
    return botocore.session.get_session()


@lru_cache(maxsize=32)
def service_model(service: str) -> ServiceModel:
    """Return botocore's model of the service with this signing name."""
    model: ServiceModel = _session().get_service_model(_MODELS.get(service, service))
    return model


@dataclass(frozen=True)
class _Route:
    """How a request for an operation looks; S3 tells many apart by query and headers alone."""

    method: str
    path: re.Pattern[str]
    query: Mapping[str, str]
    parameters: frozenset[str]
    headers: frozenset[str]
    operation: OperationModel

    def match(self, request: ApiRequest) -> re.Match[str] | None:
        """Return the match of the path, None when the request is for something else."""
        if request.method != self.method:
            return None
        query = {
            name: values[0]
            for name, values in parse_qs(request.query, keep_blank_values=True).items()
        }
        fits = (
            all(query.get(name) == value for name, value in self.query.items())
            and query.keys() >= self.parameters
            and {name.lower() for name in request.headers} >= self.headers
        )
        return self.path.fullmatch(request.path) if fits else None


@lru_cache(maxsize=32)
def _routes(service: str) -> list[_Route]:
    """Return the routes of a service: the most literal path, and the most demanding, first."""
    model = service_model(service)
    routes = [_route(model.operation_model(name)) for name in model.operation_names]
    routes.sort(
        key=lambda route: (
            route.path.pattern.count("(?P<"),
            -len(route.query) - len(route.parameters) - len(route.headers),
        )
    )
    return routes


def _route(operation: OperationModel) -> _Route:
    template, _, query = operation.http["requestUri"].partition("?")
    # A client of the same process takes the bucket out of the address, and keeps the whole here.
    template = operation.http.get("authPath", template)
    pattern = re.sub(r"\{(\w+)\+\}", r"(?P<\1>.+)", template.rstrip("/") or "/")
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)
    required: dict[str, set[str]] = {"querystring": set(), "header": set()}
    shape = operation.input_shape
    if shape is not None:
        for name in shape.required_members:
            serialization = shape.members[name].serialization
            if serialization.get("location") in required:
                required[serialization["location"]].add(serialization["name"])
    return _Route(
        method=operation.http["method"],
        path=re.compile(pattern + "/?"),
        query=dict(parse_qsl(query, keep_blank_values=True)),
        parameters=frozenset(required["querystring"]),
        headers=frozenset(name.lower() for name in required["header"]),
        operation=operation,
    )


def signing_name(headers: Mapping[str, str]) -> str:
    """Return the service that a request is signed for, "" when it is not signed."""
    match = re.search(
        r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request", headers.get("Authorization", "")
    )
    return match[1].lower() if match else ""


def identify(service: str, request: ApiRequest) -> str:
    """Return the operation's API name, "" when it is unknown."""
    target = request.headers.get("X-Amz-Target", "")
    if target:
        return target.rsplit(".", 1)[-1]
    if service in _REST_SERVICES:
        found = _match(service, request)
        return found[0].name if found else ""
    form = parse_qs(request.body.decode("utf-8", errors="replace")) if request.body else {}
    return (form.get("Action") or parse_qs(request.query).get("Action") or [""])[0]


def _match(service: str, request: ApiRequest) -> tuple[OperationModel, dict[str, str]] | None:
    for route in _routes(service):
        match = route.match(request)
        if match:
            named = {key: unquote(value) for key, value in match.groupdict().items()}
            return route.operation, named
    return None


def rest_parameters(service: str, request: ApiRequest) -> dict[str, str]:
    """Return what path and query of a request to a REST service say, by the API's own names."""
    found = _match(service, request)
    if found is None:
        return {}
    operation, in_path = found
    query = {
        name: values[0] for name, values in parse_qs(request.query, keep_blank_values=True).items()
    }
    shape = operation.input_shape
    stated: dict[str, str] = {}
    for member, model in shape.members.items() if shape is not None else ():
        name = model.serialization.get("name", member)
        place = {"uri": in_path, "querystring": query}.get(
            model.serialization.get("location", ""), {}
        )
        if name in place:
            stated[member] = place[name]
    return stated


class NativeService:
    """Base of a service that is a class with one method an operation: `create_cluster(params)`.

    Parameters arrive under the names of the API's request members; the returned dict has the names
    of the response members. Datetimes become what the service's protocol wants.
    """

    signing_name = ""

    def handle(self, request: ApiRequest) -> ApiResponse:
        """Serve one request."""
        try:
            operation, parameters = self._parse(request)
            method = getattr(self, _snake(operation), None)
            if method is None:
                raise ApiError(
                    "UnknownOperationException",
                    f"{self.signing_name}:{operation} is not emulated by the local AWS endpoint",
                    status=501,
                )
            return self._respond(200, method(parameters), {})
        except ApiError as exc:
            content = {
                "__type": exc.code,
                "message": exc.message,
                "Message": exc.message,
                **exc.members,
            }
            return self._respond(exc.status, content, {"x-amzn-ErrorType": exc.code})

    def _parse(self, request: ApiRequest) -> tuple[str, dict[str, Any]]:
        if request.headers.get("X-Amz-Target"):
            return identify(self.signing_name, request), json.loads(request.body or b"{}")
        found = _match(self.signing_name, request)
        if found is None:
            raise ApiError(
                "UnknownOperationException", f"{request.method} {request.path}", status=404
            )
        operation, in_path = found
        parameters: dict[str, Any] = json.loads(request.body) if request.body else {}
        query = parse_qs(request.query)
        shape = operation.input_shape
        for member, model in shape.members.items() if shape is not None else ():
            location = model.serialization.get("location")
            name = model.serialization.get("name", member)
            if location == "uri" and name in in_path:
                parameters[member] = in_path[name]
            elif location == "querystring" and name in query:
                values = query[name]
                parameters[member] = values if model.type_name == "list" else values[0]
        return operation.name, parameters

    def _respond(self, status: int, content: Any, headers: dict[str, str]) -> ApiResponse:
        body = json.dumps(content if content is not None else {}, default=_json_default).encode()
        return ApiResponse(
            status=status,
            headers={"Content-Type": "application/x-amz-json-1.1", **headers},
            body=body,
        )


def page(
    items: list[Any], parameters: Mapping[str, Any], *, limit: str, token: str
) -> tuple[list[Any], str | None]:
    """Return one page of `items` and the token of the next; tokens are offsets."""
    start = int(parameters.get(token) or 0)
    size = int(parameters.get(limit) or 100)
    end = start + size
    return items[start:end], str(end) if end < len(items) else None


def _json_default(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(
        f"{type(value).__name__} in a service response: {value!r}; expected JSON values"
    )


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", name).lower()
