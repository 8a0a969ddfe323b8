"""Keeps other web pages out: only this machine's own page may talk to the local endpoint.

Wraps the whole ASGI application. A page from elsewhere that a browser on this machine has open
could otherwise reach the loopback port, directly (cross-site requests) or by a name that it makes
resolve to 127.0.0.1 (DNS rebinding); the Host and Origin headers give both away.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

# Everything the page needs comes from its own address: no script, style, font, image or connection
# from anywhere else, and nothing inline.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


class LoopbackGuard:
    """Refuses requests and sockets whose Host is not loopback or whose Origin is another site."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        refusal = refusal_of(Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[:120]})
        else:
            response = JSONResponse({"ok": False, "error": refusal}, status_code=403)
            await response(scope, receive, send)


def refusal_of(headers: Headers) -> str | None:
    """Return why a request with these headers is refused, None when it is let in."""
    host = headers.get("host", "")
    if urlsplit(f"//{host}").hostname not in _LOOPBACK:
        return f"host {host!r} is not this machine; open the page at http://127.0.0.1"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return f"origin {origin!r} is another site; only the page at http://{host} may do this"
    if origin is None and headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        fetched_by = headers.get("sec-fetch-mode")
        # Following a link to the page is fine; embedding anything of it is not.
        if fetched_by != "navigate":
            return "another site may not load this"
    return None
