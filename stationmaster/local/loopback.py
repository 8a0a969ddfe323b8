"""Keeps other web pages away from local mode's servers: who may talk to a loopback port.

A page from elsewhere that a browser on this machine has open could otherwise reach the port,
directly (cross-site requests) or by a name that it makes resolve to 127.0.0.1 (DNS rebinding).
Browsers give both away in headers that a page cannot change. ASGI applications ask by
`LoopbackGuard`, those of http.server's kind by `ProgramsOnlyHandler`. Nobody is sent CORS headers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
# A refused request's body is read up to here, so that its sender sees the answer, not a reset.
_MAX_DRAINED_BYTES: Final = 10 * 1024 * 1024


@dataclass(frozen=True)
class Seen:
    """What is looked at of a request: header names are lower case, repeated headers joined."""

    method: str
    headers: Mapping[str, str]
    port: int
    target: str = ""
    """Path and query, where the rule looks at them."""


Rule = Callable[[Seen], str | None]
"""Returns why a request is refused, None when it is let in."""


def programs_only(request: Seen) -> str | None:
    """Rule of a server without a page: no browser has any business there."""
    refusal = _foreign_host(request)
    if refusal is None and "origin" in request.headers:
        refusal = f"origin {_shown(request, 'origin')}: web pages may not use this"
    if refusal is None and "sec-fetch-site" in request.headers:
        refusal = "browsers may not use this; it is for programs on this machine"
    return refusal


def signed_links_too(request: Seen) -> str | None:
    """Rule of the AWS endpoint: a person may open a presigned address, in a tab of its own.

    The endpoint checks the signature. Nothing that it sends is shown as a page.
    """
    opened = (
        request.method == "GET"
        and "X-Amz-Signature=" in request.target
        and "origin" not in request.headers
        and request.headers.get("sec-fetch-mode") == "navigate"
        and request.headers.get("sec-fetch-dest") == "document"
    )
    return _foreign_host(request) if opened else programs_only(request)


def own_page_too(request: Seen) -> str | None:
    """Rule of the server with the page: the page may use it, no other may load any of it."""
    refusal = _foreign_host(request)
    if refusal is not None:
        return refusal
    own = f"http://{request.headers['host'].lower()}"
    origin = request.headers.get("origin")
    if origin is not None:
        if origin == own:
            return None
        shown = _shown(request, "origin")
        return f"origin {shown} is another site; only the page at {own} may do this"
    if request.headers.get("sec-fetch-site", "none") in {"none", "same-origin"}:
        return None
    # Following a link to the page is fine; embedding anything of it is not.
    follows_link = (
        request.method == "GET"
        and request.headers.get("sec-fetch-mode") == "navigate"
        and request.headers.get("sec-fetch-dest", "document") == "document"
    )
    return None if follows_link else "another site may not load this"


def _foreign_host(request: Seen) -> str | None:
    ports = (f":{request.port}", "") if request.port == 80 else (f":{request.port}",)
    if request.headers.get("host", "").lower() in {
        name + port for name in _NAMES for port in ports
    }:
        return None
    shown = _shown(request, "host")
    return f"host {shown} is not this machine; use http://127.0.0.1:{request.port}"


def _shown(request: Seen, name: str) -> str:
    return repr(request.headers.get(name, "")[:100])


def _joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        key = name.lower()
        joined[key] = f"{joined[key]},{value}" if key in joined else value
    return joined


class LoopbackGuard:
    """ASGI middleware: refuses requests and sockets by `rule`."""

    def __init__(self, app: ASGIApp, rule: Rule) -> None:
        self._app = app
        self._rule = rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        raw = [(name.decode("latin-1"), text.decode("latin-1")) for name, text in scope["headers"]]
        port, path = scope["server"][1], scope["path"]
        seen = Seen(scope.get("method", "GET"), _joined(raw), port, path)
        refusal = self._rule(seen)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refuse(refusal, scope, receive, send)


async def refuse(refusal: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with 403, and a socket by not opening it."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": refusal[:120]})
    else:
        await JSONResponse(_content(refusal), status_code=403)(scope, receive, send)


class ProgramsOnlyHandler(BaseHTTPRequestHandler):
    """Answers a browser with 403, whatever the method; to be the first of a handler's bases."""

    rule: Rule = staticmethod(programs_only)
    """Another rule, where some browsers are let in."""

    def parse_request(self) -> bool:
        """Read the request line and headers; False when the request has been answered."""
        if not super().parse_request():
            return False
        port, headers = self.connection.getsockname()[1], _joined(self.headers.items())
        refusal = self.rule(Seen(self.command, headers, port, self.path))
        if refusal is not None:
            self._refuse(403, refusal)
            return False
        try:
            urlsplit(self.path)
        except ValueError as exc:
            self._refuse(400, f"request target {self.path[:100]!r}: {exc}")
            return False
        return True

    def _refuse(self, status: int, reason: str) -> None:
        length = self.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) <= _MAX_DRAINED_BYTES:
            self.rfile.read(int(length))
        body = json.dumps(_content(reason)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        # What follows was written by the same page: it must not be read as another request.
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _content(refusal: str) -> dict[str, Any]:
    return {"ok": False, "error": refusal, "message": refusal}
