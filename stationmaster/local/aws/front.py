"""The WSGI application in front of moto: checks who asks, records calls, injects faults, routes.

A browser's request (`QuietHandler`) and one that is not signed with the endpoint's key are refused
first. Requests of the endpoint's own set-up clients carry a marker in their user agent and are not
recorded. Each service but Lambda is entered by one request at a time.
"""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn
from xml.sax.saxutils import escape

from botocore.exceptions import UnknownServiceError
from moto.moto_server import werkzeug_app
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)

from stationmaster.local.aws import access
from stationmaster.local.aws.access import AccessKey
from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.faults import CONNECTION_CLOSED, InjectedError
from stationmaster.local.aws.iam.identities import KEY_ID, Principal
from stationmaster.local.aws.services.wire import (
    ApiRequest,
    ApiResponse,
    NativeService,
    identify,
    service_model,
    signing_name,
)
from stationmaster.local.loopback import ProgramsOnlyHandler, signed_links_too

logger = logging.getLogger(__name__)

OWN_CLIENT = "stationmaster-local-setup"
_XML_PROTOCOLS = frozenset({"ec2", "query", "rest-xml"})
# A handler that is invoked calls AWS itself: locking Lambda would lock the caller out.
_CONCURRENT = frozenset({"lambda"})
# moto's own pages: its dashboard, reset, seed, recorder, and an instance's credentials.
_CONTROL_PAGES = frozenset({"moto_api", "instance_metadata"})


class _ControlPageError(Exception):
    """A request is for a page of moto itself."""


class QuietHandler(ProgramsOnlyHandler, MotoRequestHandler):
    """moto's request handler, for programs and presigned links, without its access log."""

    rule = staticmethod(signed_links_too)

    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Do not take the address apart for a line that is dropped; it may be none."""

    def log(self, type: str, message: str, *args: Any) -> None:
        """Drop the access log: one line a call drowns everything else."""


class Dispatcher(DomainDispatcherApplication):
    """moto's dispatcher, but for listing moto's 200 folders from disk at each request."""

    def __init__(self) -> None:
        super().__init__(_create_app)
        self._backends: dict[str | None, Any] = {}

    def get_backend_for_host(self, host: str | None) -> Any:
        """Return the name of the backend that serves a host; None for a host of no service.

        Raises:
            _ControlPageError: it is one that controls moto.
        """
        if host not in self._backends:
            self._backends[host] = super().get_backend_for_host(host)
        if self._backends[host] in _CONTROL_PAGES:
            raise _ControlPageError
        return self._backends[host]


class Front:
    """Callable as a WSGI application."""

    def __init__(
        self, *, emulation: Emulation, services: dict[str, NativeService], key: AccessKey
    ) -> None:
        self._emulation = emulation
        self._key = key
        self._services = services
        self._moto = Dispatcher()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        try:
            request = _read(environ)
        except OSError as exc:
            error = InjectedError("SerializationException", f"the body cannot be read: {exc}")
            return _send(_failure("", error), start_response)
        is_link = f"{access.SIGNATURE}=" in request.query  # S3 has the only presigned addresses
        service = signing_name(request.headers) or ("s3" if is_link else "")
        principal = self._principal(environ)
        denial = (self._key if principal is None else principal.key).denial_of(
            method=request.method,
            uri=environ["REQUEST_URI"],
            headers=_headers(environ),
            body=request.body,
        )
        if denial is not None:
            code, message = access.error_of(denial, protocol=_protocol(service))
            return _send(_failure(service, InjectedError(code, message)), start_response)
        return self._serve(environ, start_response, request, service, principal)

    def _principal(self, environ: dict[str, Any]) -> Principal | None:
        """Return whose key a request names, None for the owner's and for unknown ones."""
        stated = environ.get("HTTP_AUTHORIZATION") or environ.get("QUERY_STRING", "")
        match = KEY_ID.search(stated)
        return self._emulation.identities.of_key(match[1]) if match else None

    def _serve(
        self,
        environ: dict[str, Any],
        start_response: Callable[..., Any],
        request: ApiRequest,
        service: str,
        principal: Principal | None,
    ) -> Iterable[bytes]:
        """Record the call, fail it if a fault or a policy says so, else let its service answer."""
        operation = ""
        if OWN_CLIENT not in request.headers.get("User-Agent", ""):
            operation = identify(service, request) if service else ""
            injected = self._emulation.injector.check(service, operation)
            if injected is not None and injected.code == CONNECTION_CLOSED:
                _hang_up(environ, "closed by an injected fault")
            if injected is None and principal is not None:
                injected = self._refusal(principal, service, operation, request)
            if injected is not None:
                failure = _failure(service, injected)
                if request.method == "HEAD":
                    failure = replace(failure, body=b"")
                return _send(failure, start_response)
        answer = self._answer(environ, start_response, request, service)
        if self._emulation.lost_answers.take(service, operation):
            _hang_up(environ, "the answer is lost, as a fault says")
        return answer

    def _answer(
        self,
        environ: dict[str, Any],
        start_response: Callable[..., Any],
        request: ApiRequest,
        service: str,
    ) -> Iterable[bytes]:
        """Let the request's service answer, and answer for it where it cannot."""
        with self._turn(service):
            try:
                native = self._services.get(service)
                if native is not None:
                    return _send(native.handle(request), start_response)
                answer: Iterable[bytes] = self._moto(environ, start_response)
                return answer
            except _ControlPageError:
                error = InjectedError("ResourceNotFoundException", "no such page")
                return _send(_failure(service, error), start_response)
            except Exception:
                # A bug of the emulation must be seen, and must reach the caller as AWS's own would.
                logger.exception("emulated service failed", extra={"service": service})
                error = InjectedError(
                    "InternalFailure", "the local AWS endpoint failed; see its log"
                )
                return _send(_failure(service, error), start_response)

    def _refusal(
        self, principal: Principal, service: str, operation: str, request: ApiRequest
    ) -> InjectedError | None:
        """Return what a principal without the rights is answered."""
        with self._turn(service):
            refusal = self._emulation.identities.refusal(
                principal, service, operation, request, _protocol(service)
            )
        if refusal is None:
            return None
        logger.warning("refused", extra={"principal": principal.name, "error": refusal.message})
        return InjectedError(refusal.code, refusal.message)

    def _turn(self, service: str) -> AbstractContextManager[Any]:
        if service in _CONCURRENT or not service:
            return nullcontext()
        return self._emulation.locks[service]


def _create_app(service: Any) -> Any:
    """Create moto's application for a service, with its exceptions raised to the front.

    moto would let pages of every origin read the answers.
    """
    werkzeug_app.DISABLE_GLOBAL_CORS = True
    app = create_backend_app(service)
    app.config["PROPAGATE_EXCEPTIONS"] = True
    return app


def _headers(environ: dict[str, Any]) -> dict[str, str]:
    """Return every header, with lower-case names."""
    return {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in {"CONTENT_TYPE", "CONTENT_LENGTH"}
    }


def _hang_up(environ: dict[str, Any], why: str) -> NoReturn:
    """End a request without an answer; one of this process has no connection to close.

    Raises:
        ConnectionResetError: always.
    """
    connection = environ.get("werkzeug.socket")
    if connection is not None:
        connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError(why)


def _read(environ: dict[str, Any]) -> ApiRequest:
    """Read the request, leaving its body to be read again."""
    body = b""
    length = environ.get("CONTENT_LENGTH", "")
    if environ.get("wsgi.input_terminated"):
        body = environ["wsgi.input"].read()
    elif length.isdecimal():
        body = environ["wsgi.input"].read(int(length))
    environ["wsgi.input"] = io.BytesIO(body)
    names = {
        "Authorization": "HTTP_AUTHORIZATION",
        "X-Amz-Target": "HTTP_X_AMZ_TARGET",
        "User-Agent": "HTTP_USER_AGENT",
        # S3 tells operations of the same path apart by these.
        "X-Amz-Copy-Source": "HTTP_X_AMZ_COPY_SOURCE",
        "X-Amz-Object-Attributes": "HTTP_X_AMZ_OBJECT_ATTRIBUTES",
    }
    raw_path = environ.get("REQUEST_URI") or environ.get("PATH_INFO", "/")
    return ApiRequest(
        method=environ["REQUEST_METHOD"],
        path=raw_path.split("?")[0],
        query=environ.get("QUERY_STRING", ""),
        headers={name: environ[key] for name, key in names.items() if key in environ},
        body=body,
    )


def _protocol(service: str) -> str:
    """Return the protocol of a service, JSON when there is none of this name."""
    try:
        return str(service_model(service).metadata["protocol"]) if service else "json"
    except UnknownServiceError:
        return "json"


def _failure(service: str, error: InjectedError) -> ApiResponse:
    """Word an error in the protocol of the service."""
    protocol = _protocol(service)
    if protocol not in _XML_PROTOCOLS:
        content = {"__type": error.code, "message": error.message, "Message": error.message}
        return ApiResponse(
            status=error.status,
            headers={
                "Content-Type": "application/x-amz-json-1.0",
                "x-amzn-ErrorType": error.code,
            },
            body=json.dumps(content).encode(),
        )
    text = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error>"
    if protocol == "ec2":
        text = f"<Response><Errors>{text}</Errors><RequestID>local</RequestID></Response>"
    elif protocol == "query":
        text = f"<ErrorResponse>{text}<RequestId>local</RequestId></ErrorResponse>"
    return ApiResponse(
        status=error.status, headers={"Content-Type": "text/xml"}, body=text.encode()
    )


def _send(response: ApiResponse, start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response(
        f"{response.status} -",
        [*response.headers.items(), ("Content-Length", str(len(response.body)))],
    )
    return [response.body]
