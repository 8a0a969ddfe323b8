"""The routes that only the page uses: its socket, and what a person does on it.

Mounted by `web.py` under `/local/`. They are not part of Slack; the page's data attributes, which
tests may rely on, are listed in `page/README.md`.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.websockets import WebSocket, WebSocketDisconnect

from stationmaster.local.slack import limits
from stationmaster.local.slack.endpoint import Endpoint
from stationmaster.local.slack.interactions import Interactions
from stationmaster.local.slack.records import (
    BOT_USER_ID,
    OPERATOR_ID,
    TEAM_NAME,
    Json,
    SlackRefusal,
)
from stationmaster.local.slack.workspace import Change

# A page that does not read this many changes is disconnected; it comes back with a new snapshot.
_MAX_UNREAD = 5000


class _Act(BaseModel):
    """What the page sends; each route needs some of the fields."""

    model_config = ConfigDict(extra="forbid")

    user: str
    channel: str = ""
    text: str = ""
    ts: str = ""
    thread_ts: str | None = None
    action_id: str = ""
    value: str | None = None
    view_id: str = ""
    block_id: str = ""
    values: dict[str, Any] = {}
    name: str = ""


class PageRoutes:
    """What the page calls."""

    def __init__(self, *, endpoint: Endpoint, interactions: Interactions) -> None:
        self._endpoint = endpoint
        self._interactions = interactions

    def routes(self) -> list[Route]:
        """Return the routes, all of them POST with a JSON body."""
        acts = {
            "send": self._send,
            "click": self._click,
            "enter": self._enter,
            "home": self._home,
            "submit": self._submit,
            "close": self._close,
            "dismiss": self._dismiss,
            "run": self._run,
        }
        return [
            Route(f"/local/{name}", _route(self._endpoint, act), methods=["POST"])
            for name, act in acts.items()
        ]

    async def socket(self, socket: WebSocket) -> None:
        """Send the page a snapshot, then every change that its user may see."""
        user = socket.query_params.get("user", OPERATOR_ID)
        await socket.accept()
        if user not in self._endpoint.workspace.users or user == BOT_USER_ID:
            await socket.close(code=4004, reason="unknown user")
            return
        feed = _Feed(asyncio.get_running_loop(), user)
        snapshot, forget = self._endpoint.workspace.snapshot_and_listen(feed.offer, user=user)
        try:
            await socket.send_json({"kind": "snapshot", "payload": self._whole(snapshot, user)})
            await _pump(socket, feed)
        except (WebSocketDisconnect, RuntimeError):
            # The browser went away while a message was on its way to it.
            return
        finally:
            forget()

    def _whole(self, snapshot: Json, user: str) -> Json:
        return {
            **snapshot,
            "user": user,
            "bot_user_id": BOT_USER_ID,
            "team_name": TEAM_NAME,
            "app": asdict(self._endpoint.app),
            "shown_text": limits.MESSAGE_TEXT_SHOWN,
            "home": self._endpoint.views.home_of(user),
            "views": self._endpoint.views.of_user(user),
        }

    def _send(self, act: _Act) -> Json:
        text = act.text.strip()
        if not text:
            raise SlackRefusal("no_text")
        if len(text) > limits.MESSAGE_TEXT:
            raise SlackRefusal("msg_too_long")
        channel = self._endpoint.workspace.find_channel(act.channel, user=act.user)
        if act.user not in channel.members:
            raise SlackRefusal("not_in_channel")
        if text.startswith("/"):
            result = self._interactions.type_command(
                text, user=act.user, channel=channel.id, thread_ts=act.thread_ts
            )
            return {"error_shown": result.error, "shown_ts": result.shown_ts}
        message, _ = self._interactions.say(
            text, user=act.user, channel=channel.id, thread_ts=act.thread_ts
        )
        return {"ts": message.ts}

    def _click(self, act: _Act) -> Json:
        result = self._interactions.click(
            message_ts=act.ts,
            channel=act.channel,
            action_id=act.action_id,
            value=act.value,
            user=act.user,
        )
        if result.error is not None:
            raise SlackRefusal(result.error)
        return {}

    def _enter(self, act: _Act) -> Json:
        result = self._interactions.act_in_view(
            act.view_id,
            block_id=act.block_id,
            action_id=act.action_id,
            values=act.values,
            user=act.user,
        )
        if result.error is not None:
            raise SlackRefusal(result.error)
        return {}

    def _home(self, act: _Act) -> Json:
        result = self._interactions.open_home(act.user)
        return {"error": result.error} if result.error is not None else {}

    def _submit(self, act: _Act) -> Json:
        return self._interactions.submit_view(act.view_id, values=act.values, user=act.user)

    def _close(self, act: _Act) -> Json:
        self._interactions.close_view(act.view_id)
        return {}

    def _dismiss(self, act: _Act) -> Json:
        message = self._endpoint.workspace.get(act.channel, act.ts)
        if message.ephemeral_to != act.user:
            raise SlackRefusal("message_not_found")
        self._endpoint.workspace.delete(act.channel, act.ts)
        return {}

    def _run(self, act: _Act) -> Json:
        channel = self._endpoint.workspace.find_channel(act.channel, user=act.user)
        if self._endpoint.look_at_run is None:
            raise SlackRefusal("this workspace shows no runs")
        return self._endpoint.look_at_run(act.value or "", channel.id)


class _Feed:
    """Carries changes from any thread to one socket's coroutine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, user: str) -> None:
        self._loop = loop
        self._user = user
        self.queue: asyncio.Queue[Change | None] = asyncio.Queue()

    def offer(self, change: Change) -> None:
        if change.audience in {None, self._user} and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, change)

    def _put(self, change: Change) -> None:
        self.queue.put_nowait(change if self.queue.qsize() < _MAX_UNREAD else None)


async def _pump(socket: WebSocket, feed: _Feed) -> None:
    """Send changes until the browser leaves or falls too far behind."""
    leaving = asyncio.ensure_future(socket.receive())
    try:
        while True:
            coming = asyncio.ensure_future(feed.queue.get())
            done, _ = await asyncio.wait({leaving, coming}, return_when=asyncio.FIRST_COMPLETED)
            if coming not in done:
                coming.cancel()
            elif (change := coming.result()) is None:
                await socket.close(code=1013, reason="fell behind")
                return
            else:
                await socket.send_json({"kind": change.kind, "payload": change.payload})
            if leaving in done:
                if leaving.result()["type"] == "websocket.disconnect":
                    return
                leaving = asyncio.ensure_future(socket.receive())
    finally:
        leaving.cancel()


def _route(endpoint: Endpoint, act: Any) -> Any:
    async def route(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # What a form can send, a browser sends to other sites without asking them.
            error = f"content type {kind!r}: expected application/json"
            return JSONResponse({"ok": False, "error": error}, status_code=415)
        try:
            parsed = _Act.model_validate_json(await request.body())
        except ValidationError as exc:
            return JSONResponse({"ok": False, "error": str(exc)}, status_code=400)
        if parsed.user not in endpoint.workspace.users or parsed.user == BOT_USER_ID:
            return JSONResponse({"ok": False, "error": "user_not_found"}, status_code=400)
        try:
            # A delivery to the app waits for up to 3 s; the event loop must not.
            answer = await anyio.to_thread.run_sync(act, parsed)
        except SlackRefusal as refusal:
            return JSONResponse({"ok": False, "error": refusal.error})
        return JSONResponse({"ok": True, **answer})

    return route
