"""The HTTP and WebSocket surface: Web API, uploads, response hooks, the page and its own routes.

`server.py` builds it. Routes parse and answer; what happens is in `api.py`,
`methods.py` and `page_routes.py`. Another user of this machine reaches the same port, so nobody
reads or types as a person of the workspace without the key of the page: the address of
`LocalSlack.page_url` brings it, and it becomes a cookie of this port.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from stationmaster.local.loopback import LoopbackGuard, Seen, own_page_too, refuse
from stationmaster.local.slack.api import WebApi
from stationmaster.local.slack.arguments import parse_arguments
from stationmaster.local.slack.endpoint import Endpoint
from stationmaster.local.slack.interactions import Interactions
from stationmaster.local.slack.methods import IMAGE_TYPES, receive_upload, show_answer
from stationmaster.local.slack.page_routes import PageRoutes
from stationmaster.local.slack.records import Json, SlackRefusal

_PAGE_DIR = Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
# Everything the page needs comes from its own address: no script, style, font, image or connection
# from anywhere else, and nothing inline.
_PAGE_POLICY = "; ".join(
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
# No other site keeps a window on the page or embeds a file of it, also in browsers that do not say
# where a request comes from.
_APART = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_PAGE_HEADERS = {
    **_APART,
    "Content-Security-Policy": _PAGE_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
# Uploads may be anything: never let a browser run them, never let it guess their type.
_FILE_HEADERS = {
    **_APART,
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=86400, immutable",
}


def build_application(
    *, endpoint: Endpoint, api: WebApi, interactions: Interactions, page_key: str
) -> Starlette:
    """Return the ASGI application."""
    routes = _Routes(endpoint=endpoint, api=api)
    page = PageRoutes(endpoint=endpoint, interactions=interactions)
    return Starlette(
        routes=[
            Route("/api/{method}", routes.web_api, methods=["GET", "POST"]),
            Route("/upload/v1/{file_id}", routes.upload, methods=["POST", "PUT"]),
            Route("/hooks/response/{hook_id}", routes.response_hook, methods=["POST"]),
            Route("/files/{file_id}/{name}", routes.file, methods=["GET"]),
            Route("/", routes.page, methods=["GET"]),
            Route("/archives/{channel}/{message}", routes.page, methods=["GET"]),
            Route("/static/{name:path}", routes.static, methods=["GET"]),
            WebSocketRoute("/link/", endpoint.sockets.serve),
            WebSocketRoute("/local/socket", page.socket),
            *page.routes(),
        ],
        middleware=[
            Middleware(LoopbackGuard, rule=_own_page_and_app),
            Middleware(PageKeyGuard, key=page_key),
        ],
    )


def _own_page_and_app(request: Seen) -> str | None:
    # slack_sdk names no port when it opens Socket Mode, where its ticket is looked at; a browser
    # would name its origin.
    is_app = request.target == "/link/" and "origin" not in request.headers
    return None if is_app else own_page_too(request)


class _Routes:
    """The routes that stand for slack.com, and the page's files."""

    def __init__(self, *, endpoint: Endpoint, api: WebApi) -> None:
        self._endpoint = endpoint
        self._api = api
        self._static = {
            path.name: path for path in _PAGE_DIR.iterdir() if path.suffix in _MEDIA_TYPES
        }

    async def web_api(self, request: Request) -> Response:
        try:
            values = await _arguments(request)
        except SlackRefusal as refusal:
            return JSONResponse({"ok": False, "error": refusal.error})
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else None
        return self._api.call(request.path_params["method"], values, bearer=bearer)

    async def upload(self, request: Request) -> Response:
        try:
            content, file_id = await request.body(), request.path_params["file_id"]
            text = receive_upload(self._endpoint, file_id, content)
        except SlackRefusal as refusal:
            return PlainTextResponse(refusal.error, status_code=400)
        return PlainTextResponse(text)

    async def response_hook(self, request: Request) -> Response:
        try:
            body = await _arguments(request)
            target = self._endpoint.response_urls.use(request.path_params["hook_id"])
            show_answer(self._endpoint, body, target, method="response_url")
        except SlackRefusal as refusal:
            gone = {"expired_url", "used_url", "invalid_response_url"}
            status = 404 if refusal.error in gone else 400
            return PlainTextResponse(refusal.error, status_code=status)
        return PlainTextResponse("ok")

    async def file(self, request: Request) -> Response:
        file = self._endpoint.workspace.files.get(request.path_params["file_id"])
        if file is None or file.content is None:
            return PlainTextResponse("file not found", status_code=404)
        if file.mimetype in IMAGE_TYPES.values():
            return Response(file.content, media_type=file.mimetype, headers=_FILE_HEADERS)
        headers = {**_FILE_HEADERS, "Content-Disposition": "attachment"}
        return Response(file.content, media_type="application/octet-stream", headers=headers)

    async def page(self, request: Request) -> Response:
        del request
        return FileResponse(_PAGE_DIR / "index.html", media_type="text/html", headers=_PAGE_HEADERS)

    async def static(self, request: Request) -> Response:
        path = self._static.get(request.path_params["name"])
        if path is None:
            return PlainTextResponse("no such file", status_code=404)
        return FileResponse(path, media_type=_MEDIA_TYPES[path.suffix], headers=_PAGE_HEADERS)


async def _arguments(request: Request) -> Json:
    return parse_arguments(
        content_type=request.headers.get("content-type", ""),
        body=await request.body(),
        query=request.query_params.items(),
    )


_REFUSAL: Final = (
    "this page needs its key: open the address that stationmaster local up has printed"
)


class PageKeyGuard:
    """ASGI middleware: lets in who has the key, in the address or in the cookie that it set."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path != "/" and not path.startswith(("/local/", "/archives/")):
            await self._app(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        # Browsers send a cookie to every port of a name: each local mode has a name of its own.
        cookie = f"stationmaster-page-{scope['server'][1]}"
        if scope["type"] == "http" and self._fits(asked.query_params.get("key", "")):
            # Without the key, the address can be shown and kept.
            answer = RedirectResponse(path, status_code=303)
            answer.set_cookie(cookie, self._key, httponly=True, samesite="lax")
            await answer(scope, receive, send)
        elif self._fits(asked.cookies.get(cookie, "")):
            await self._app(scope, receive, send)
        else:
            await refuse(_REFUSAL, scope, receive, send)

    def _fits(self, stated: str) -> bool:
        return hmac.compare_digest(stated.encode(), self._key.encode())
