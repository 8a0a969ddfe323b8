"""The WSGI application in front of moto: checks who asks, records calls, injects faults, routes.

A browser's request (`QuietHandler`) and one that is not signed with the endpoint's key are refused
first. Requests of the endpoint's own set-up clients carry a marker in their user agent and are not
recorded. Each service but Lambda is entered by one request at a time.
"""

from __future__ import annotations

import io
import json
import logging
import re
import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn
from xml.sax.saxutils import escape

from botocore.exceptions import UnknownServiceError
from moto.core.request import Request
from moto.moto_server import werkzeug_app
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)

from stationmaster.local.aws import access
from stationmaster.local.aws.access import AccessKey
from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.faults import CONNECTION_CLOSED
from stationmaster.local.aws.iam.identities import KEY_ID, Principal, unknown_operation
from stationmaster.local.aws.saved_account import save_objects
from stationmaster.local.aws.wire import (
    ApiError,
    NativeService,
    identify,
    parameters_of,
    service_model,
)
from stationmaster.local.loopback import ProgramsOnlyHandler, signed_links_too

logger = logging.getLogger(__name__)

OWN_CLIENT = "stationmaster-local-setup"
_XML_PROTOCOLS = frozenset({"ec2", "query", "rest-xml"})
# A handler that is invoked calls AWS itself: locking Lambda would lock the caller out.
_CONCURRENT = frozenset({"lambda"})
StartResponse = Callable[..., Any]
# moto's own pages: its dashboard, reset, seed, recorder, and an instance's credentials.
_CONTROL_PAGES = frozenset({"moto_api", "instance_metadata"})


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
            ApiError: it is one that controls moto.
        """
        if host not in self._backends:
            self._backends[host] = super().get_backend_for_host(host)
        if self._backends[host] in _CONTROL_PAGES:
            raise ApiError("ResourceNotFoundException", "no such page")
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

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        service = ""
        try:
            request = _read(environ)
            service = _service(request)
            principal = self._principal(request)
            (self._key if principal is None else principal.key).check(
                method=request.method,
                uri=environ["REQUEST_URI"],
                headers={name.lower(): value for name, value in request.headers.items()},
                body=request.get_data(),
                protocol=_protocol(service),
            )
            return self._serve(environ, start_response, request, service, principal)
        except ApiError as error:
            status, kind, content = _failure(service, error)
            is_bare = environ["REQUEST_METHOD"] == "HEAD"
            return _send(start_response, status, kind, b"" if is_bare else content)

    def _principal(self, request: Request) -> Principal | None:
        """Return whose key a request names, None for the owner's and for unknown ones."""
        stated = request.headers.get("Authorization") or request.query_string.decode()
        match = KEY_ID.search(stated)
        return self._emulation.identities.of_key(match[1]) if match else None

    def _serve(
        self,
        environ: dict[str, Any],
        start_response: StartResponse,
        request: Request,
        service: str,
        principal: Principal | None,
    ) -> Iterable[bytes]:
        """Record the call, fail it if a fault or a policy says so, else let its service answer."""
        operation, named = identify(service, request) if service else ("", {})
        is_recorded = OWN_CLIENT not in request.headers.get("User-Agent", "")
        if is_recorded:
            injected = self._emulation.injector.check(service, operation)
            if injected is not None and injected.code == CONNECTION_CLOSED:
                _hang_up(environ, "closed by an injected fault")
            if injected is not None:
                raise injected
            if principal is not None:
                self._check_rights(principal, service, operation, request, named)
        with self._turn(service):
            try:
                native = self._services.get(service)
                if native is None:
                    answer: Iterable[bytes] = self._moto(environ, start_response)
                    saved = self._emulation.saved
                    if service == "s3" and saved and request.method not in ("GET", "HEAD"):
                        save_objects(self._emulation, saved, request.path)
                else:
                    asked = parameters_of(service, request, operation, named)
                    content = native.serve(operation, asked)
                    answer = _send(start_response, 200, "application/x-amz-json-1.1", content)
            except ApiError:
                raise
            except Exception as exc:
                # A bug of the emulation must be seen, and must reach the caller as AWS's own would.
                logger.exception("emulated service failed", extra={"service": service})
                raise ApiError(
                    "InternalFailure", "the local AWS endpoint failed; see its log"
                ) from exc
        if is_recorded and self._emulation.first_calls.loses_answer(service, operation):
            _hang_up(environ, "the answer is lost, as a fault says")
        return answer

    def _check_rights(
        self,
        principal: Principal,
        service: str,
        operation: str,
        request: Request,
        named: dict[str, Any],
    ) -> None:
        """Refuse what a principal has no rights for."""
        protocol = _protocol(service)
        try:
            if not operation:
                raise unknown_operation(
                    principal, f"{service} for {request.method} {request.raw_path}", protocol
                )
            with self._turn(service):
                given = parameters_of(service, request, operation, named)
                self._emulation.identities.check(principal, service, operation, given, protocol)
        except ApiError as error:
            logger.warning("refused", extra={"principal": principal.name, "error": error.message})
            raise

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


def _hang_up(environ: dict[str, Any], why: str) -> NoReturn:
    """End a request without an answer; one of this process has no connection to close.

    Raises:
        ConnectionResetError: always.
    """
    connection = environ.get("werkzeug.socket")
    if connection is not None:
        connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError(why)


def _read(environ: dict[str, Any]) -> Request:
    """Read the request, leaving its body to be read again.

    Raises:
        ApiError: the body cannot be read.
    """
    length = environ.get("CONTENT_LENGTH", "")
    body = b""
    try:
        if environ.get("wsgi.input_terminated"):
            body = environ["wsgi.input"].read()
        elif length.isdecimal():
            body = environ["wsgi.input"].read(int(length))
    except OSError as exc:
        message = f"the body cannot be read: {exc}"
        raise ApiError("SerializationException", message) from exc
    environ["wsgi.input"] = io.BytesIO(body)
    request = Request(environ, populate_request=False)
    request.get_data()  # kept by the request, for whatever looks at it
    environ["wsgi.input"] = io.BytesIO(body)
    return request


def _service(request: Request) -> str:
    """Return the service that a request is signed for, "" when it is not signed."""
    stated = request.headers.get("Authorization", "")
    match = re.search(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request", stated)
    # S3 has the only presigned addresses.
    return match[1].lower() if match else "s3" if access.SIGNATURE in request.args else ""


def _protocol(service: str) -> str:
    """Return the protocol of a service, JSON when there is none of this name."""
    try:
        return str(service_model(service).protocol) if service else "json"
    except UnknownServiceError:
        return "json"


def _failure(service: str, error: ApiError) -> tuple[int, str, bytes]:
    """Word an error in the protocol of the service: status, content type and body."""
    protocol = _protocol(service)
    if protocol not in _XML_PROTOCOLS:
        content = {"__type": error.code, "message": error.message, "Message": error.message}
        return error.status, "application/x-amz-json-1.0", json.dumps(content).encode()
    text = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error>"
    if protocol == "ec2":
        text = f"<Response><Errors>{text}</Errors><RequestID>local</RequestID></Response>"
    elif protocol == "query":
        text = f"<ErrorResponse>{text}<RequestId>local</RequestId></ErrorResponse>"
    return error.status, "text/xml", text.encode()


def _send(start_response: StartResponse, status: int, kind: str, content: bytes) -> Iterable[bytes]:
    start_response(f"{status} -", [("Content-Type", kind), ("Content-Length", str(len(content)))])
    return [content]
