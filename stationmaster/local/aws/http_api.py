"""A loopback server that turns requests into API Gateway HTTP API (payload 2.0) events.

Slack's local stand-in posts here as Slack posts to the deployed API. Of the request's context,
events say what the bot may read.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lambdas.registry import Route
from stationmaster.local.loopback import ProgramsOnlyHandler

logger = logging.getLogger(__name__)

Invoke = Callable[[str, bytes], tuple[bytes, bool]]

# API Gateway's limit on a request; source: "Amazon API Gateway quotas", HTTP API payload size.
_MAX_BODY_BYTES = 10 * 1024 * 1024
_TEXT_TYPES = ("text/", "application/json", "application/x-www-form-urlencoded", "application/xml")


class HttpApi:
    """The HTTP front door, which serves in the background."""

    def __init__(self, *, invoke: Invoke) -> None:
        self._routes: dict[tuple[str, str], Route] = {}
        self._invoke = invoke
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_class(self))
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="http-api",
            daemon=True,
        ).start()

    @property
    def url(self) -> str:
        """The address, without a slash at its end."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def add(self, routes: Iterable[Route]) -> None:
        """Serve these routes too."""
        for route in routes:
            self._routes[route.method.upper(), route.path] = route

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def serve(self, request: BaseHTTPRequestHandler) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return the status, headers and body for one request."""
        stated = request.headers.get("Content-Length", "0")
        if not stated.isdecimal():
            request.close_connection = True  # where the next request begins is unknown
            return 400, [("Content-Type", "application/json")], b'{"message":"Bad Request"}'
        length = int(stated)
        if length > _MAX_BODY_BYTES:
            request.close_connection = True  # the body stays unread
            return 413, [("Content-Type", "application/json")], b'{"message":"Request Too Long"}'
        body = request.rfile.read(length)
        path = urlsplit(request.path).path
        route = self._routes.get((request.command, path))
        if route is None:
            return 404, [("Content-Type", "application/json")], b'{"message":"Not Found"}'
        event = self._event(request, route, body)
        payload, failed = self._invoke(route.function, json.dumps(event).encode())
        if failed:
            answer = b'{"message":"Internal Server Error"}'
            return 500, [("Content-Type", "application/json")], answer
        return _response(payload)

    def _event(self, request: BaseHTTPRequestHandler, route: Route, body: bytes) -> dict[str, Any]:
        target = urlsplit(request.path)
        headers: dict[str, str] = {}
        for name, value in request.headers.items():
            key = name.lower()
            headers[key] = f"{headers[key]},{value}" if key in headers else value
        text, encoded = _body(body, headers.get("content-type", ""))
        query: dict[str, str] = {}
        for name, value in parse_qsl(target.query, keep_blank_values=True):
            query[name] = f"{query[name]},{value}" if name in query else value
        event: dict[str, Any] = {
            "version": "2.0",
            "routeKey": f"{route.method} {route.path}",
            "rawPath": target.path,
            "rawQueryString": target.query,
            "headers": headers,
            "requestContext": {
                "http": {
                    "method": request.command,
                    "path": target.path,
                    "protocol": "HTTP/1.1",
                    "sourceIp": request.client_address[0],
                    "userAgent": headers.get("user-agent", ""),
                },
                "requestId": str(uuid.uuid4()),
            },
            "isBase64Encoded": encoded,
        }
        if text is not None:
            event["body"] = text
        if "cookie" in headers:
            event["cookies"] = headers.pop("cookie").split("; ")
        if query:
            event["queryStringParameters"] = query
        return event


def _body(body: bytes, content_type: str) -> tuple[str | None, bool]:
    """Return the body's text and whether it is base64: binary and unknown types are."""
    if not body:
        return None, False
    if content_type.startswith(_TEXT_TYPES):
        try:
            return body.decode(), False
        except UnicodeDecodeError:
            return base64.b64encode(body).decode(), True
    return base64.b64encode(body).decode(), True


def _response(payload: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    """Turn a function's result into an HTTP response, by the rules of payload format 2.0."""
    result = json.loads(payload or b"null")
    if not isinstance(result, dict) or "statusCode" not in result:
        # A result without a status is the body of a 200.
        return 200, [("Content-Type", "application/json")], json.dumps(result).encode()
    headers = [(name, str(value)) for name, value in (result.get("headers") or {}).items()]
    return int(result["statusCode"]), headers, str(result.get("body") or "").encode()


def _handler_class(api: HttpApi) -> type[BaseHTTPRequestHandler]:
    class Handler(ProgramsOnlyHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            status, headers, body = api.serve(self)
            self.send_response(status)
            for name, value in headers:
                if name.lower() != "content-length":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _serve  # noqa: N815  # the names are http.server's

        def log_message(self, format: str, *args: object) -> None:
            logger.debug("http api", extra={"request": format % args})

    return Handler
