"""The REST surface of the local Kubernetes API: which request goes where, and who may ask.

Served by `server.py`; used by the official Python client, its DynamicClient and kubectl. What reads
is in `reading.py`, what writes in `writing.py`.
"""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stationmaster.local.cluster.api import discovery, errors, requests
from stationmaster.local.cluster.api.applying import APPLY_PATCH
from stationmaster.local.cluster.api.authorization import (
    ADMINISTRATOR,
    Authorizer,
    Person,
    Question,
    Tokens,
    impersonated,
)
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.reading import LogFinder, Reader
from stationmaster.local.cluster.api.requests import Target
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.writing import Writer
from stationmaster.local.loopback import LoopbackGuard, programs_only

_OPEN_PATHS = {"healthz", "readyz", "livez", "version"}
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Api:
    """Request handlers over the stored objects."""

    def __init__(self, objects: Objects, *, tokens: Tokens, find_log: LogFinder) -> None:
        self._catalog = objects.catalog
        self._tokens = tokens
        self._authorizer = Authorizer(objects)
        self.closing = asyncio.Event()
        self._reader = Reader(objects, find_log=find_log, closing=self.closing)
        self._writer = Writer(objects)

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/{path:path}", self._handle, methods=_METHODS)],
            middleware=[Middleware(LoopbackGuard, rule=programs_only)],
        )

    async def _handle(self, request: Request) -> Response:
        try:
            return await self._route(request)
        except errors.NoSuchRouteError as exc:
            return PlainTextResponse(exc.TEXT, status_code=404)
        except ApiError as exc:
            return JSONResponse(exc.status(), status_code=exc.code)
        except (KeyError, TypeError, AttributeError, ValueError) as exc:
            # What is not looked at before, such as the body of an access review, shows here.
            wrong = errors.bad_request(f"the object is malformed: {type(exc).__name__}: {exc}")
            return JSONResponse(wrong.status(), status_code=wrong.code)

    async def _route(self, request: Request) -> Response:
        parts = [part for part in request.path_params["path"].split("/") if part]
        person = ADMINISTRATOR
        if parts and parts[0] not in _OPEN_PATHS:
            person = self._person(request.headers)
        catalog = self._catalog
        match parts:
            case ["version"]:
                return JSONResponse(discovery.VERSION)
            case ["healthz" | "readyz" | "livez", *_]:
                return PlainTextResponse("ok")
            case ["api"]:
                return JSONResponse(discovery.core_versions(request.url.netloc))
            case ["apis"]:
                return JSONResponse(discovery.group_list(catalog))
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
            case ["apis", _, "v1", review] if review in discovery.REVIEWS:
                return await self._review(request, review, person)
            case ["api", "v1", *rest]:
                target = requests.target_of(catalog, "", "v1", rest)
                return await self._authorized(request, target, person)
            case ["apis", group, version, *rest]:
                target = requests.target_of(catalog, group, version, rest)
                return await self._authorized(request, target, person)
            case _:
                raise errors.no_such_route()

    def _person(self, headers: Headers) -> Person:
        """Return who asks, or as whom where they may: `kubectl --as`."""
        sender = self._tokens.person(headers.get("authorization"))
        person, questions = impersonated(headers) or (sender, [])
        for question in questions:
            self._authorizer.require(sender, question)
        return person

    async def _review(self, request: Request, plural: str, person: Person) -> Response:
        """Access reviews, answered from the rules that hold for requests."""
        review = await requests.body_of(request)
        spec = (review or {}).get("spec") or {}
        if plural == "subjectaccessreviews":
            group = "authorization.k8s.io"
            self._authorizer.require(person, Question("create", group=group, resource=plural))
            person = Person(spec.get("user", ""), tuple(spec.get("groups") or ()))
        if plural == "selfsubjectreviews":
            review["status"] = {"userInfo": {"username": person.user, "groups": [*person.groups]}}
        elif plural == "selfsubjectrulesreviews":
            review["status"] = self._authorizer.rights(person, spec["namespace"])
        else:
            review["status"] = {"allowed": self._authorizer.allows(person, Question.of(spec))}
        return JSONResponse(review, status_code=201)

    async def _authorized(self, request: Request, target: Target, person: Person) -> Response:
        for verb in self._verbs_of(request, target):
            self._authorizer.require(person, _question(verb, target))
        return await self._verb(request, target)

    def _verbs_of(self, request: Request, target: Target) -> list[str]:
        """Return what rules call the request; an apply of what is missing creates it as well."""
        if request.method == "GET":
            if target.name:
                return ["get"]
            return ["watch" if requests.flag(request.query_params, "watch") else "list"]
        if request.method == "DELETE":
            return ["delete" if target.name else "deletecollection"]
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}[request.method]
        applied = request.headers.get("content-type", "").startswith(APPLY_PATCH)
        if applied and self._reader.find(target) is None:
            return [verb, "create"]
        return [verb]

    async def _verb(self, request: Request, target: Target) -> Response:
        match (request.method, bool(target.name), target.subresource):
            case ("GET", False, ""):
                if requests.flag(request.query_params, "watch"):
                    return self._reader.watch_objects(request, target)
                return self._reader.list_objects(request, target)
            case ("POST", False, ""):
                return await self._writer.create(request, target)
            case ("GET", True, "" | "status"):
                return self._reader.get(request, target)
            case ("PUT", True, "" | "status"):
                return await self._writer.update(request, target)
            case ("PATCH", True, "" | "status"):
                return await self._writer.patch(request, target)
            case ("DELETE", True, ""):
                return await self._writer.delete(request, target)
            case ("GET", True, "log") if target.resource.key == "pods":
                return self._reader.log(request, target)
            case _:
                raise errors.method_not_allowed(
                    f"the server does not allow {request.method} on {target.resource.key}"
                    f"{'/' + target.subresource if target.subresource else ''}"
                )


def _question(verb: str, target: Target) -> Question:
    resource = target.resource
    return Question(
        verb,
        group=resource.group,
        resource=resource.plural,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name,
    )


def _found(document: Object | None) -> Response:
    if document is None:
        raise errors.no_such_route()
    return JSONResponse(document)
