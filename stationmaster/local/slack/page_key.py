"""The key of the page: without it nobody reads or types as a person of the workspace.

Another user of this machine reaches the same port. The address of `LocalSlack.page_url` brings the
key, which becomes a cookie of this port; `web.py` puts the guard before the routes of the page.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stationmaster.local.loopback import refuse

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
