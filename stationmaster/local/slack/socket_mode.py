"""Socket Mode: the WebSockets of an app that Slack cannot reach, and what goes over them.

While one is open, everything that people do goes there and not to the app's address. Source:
https://docs.slack.dev/apis/events-api/using-socket-mode
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from starlette.websockets import WebSocket, WebSocketDisconnect

from stationmaster.local.slack.records import APP_ID, Json

# Source: https://docs.slack.dev/apis/events-api/using-socket-mode, "up to 10".
_MOST_OPEN = 10
_GONE = "the socket was closed before an answer came"


class Sockets:
    """The open WebSockets, and the tickets of those to come, each good for one."""

    def __init__(self, *, base_url: Callable[[], str]) -> None:
        self._base_url = base_url
        self._lock = threading.Lock()
        self._tickets: deque[str] = deque(maxlen=_MOST_OPEN)
        self._open: dict[WebSocket, asyncio.AbstractEventLoop] = {}
        self._waiting: dict[str, tuple[WebSocket, Future[str]]] = {}

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def new_address(self) -> str:
        """Return the address of one WebSocket."""
        ticket = secrets.token_urlsafe(18)
        with self._lock:
            self._tickets.append(ticket)
        return f"ws{self._base_url().removeprefix('http')}/link/?ticket={ticket}"

    async def serve(self, socket: WebSocket) -> None:
        """Keep a WebSocket until the app closes it."""
        ticket = socket.query_params.get("ticket", "")
        with self._lock:
            is_known = ticket in self._tickets and len(self._open) < _MOST_OPEN
            if is_known:
                self._tickets.remove(ticket)
        if not is_known:
            await socket.close()
            return
        await socket.accept()
        try:
            self._open[socket] = asyncio.get_running_loop()
            info = {"app_id": APP_ID}
            await socket.send_json({"type": "hello", "connection_info": info, "num_connections": 1})
            while True:
                self._acknowledge(await socket.receive_text())
        except (WebSocketDisconnect, RuntimeError):
            return
        finally:
            self._forget(socket)

    def deliver(self, kind: str, payload: Json, *, retry_num: int, within_s: float) -> str:
        """Send an envelope over the newest WebSocket; return the payload of its answer as JSON.

        Raises:
            ConnectionError: none is open any more.
            TimeoutError: nothing came back.
        """
        envelope_id = secrets.token_hex(16)
        envelope = {
            "envelope_id": envelope_id,
            "type": kind,
            "payload": payload,
            "accepts_response_payload": kind != "events_api",
        }
        if retry_num:
            envelope |= {"retry_attempt": retry_num, "retry_reason": "timeout"}
        answer: Future[str] = Future()
        with self._lock:
            if not self._open:
                raise ConnectionError(_GONE)
            socket, loop = [*self._open.items()][-1]
            self._waiting[envelope_id] = socket, answer
        try:
            asyncio.run_coroutine_threadsafe(socket.send_json(envelope), loop)
            return answer.result(timeout=within_s)
        finally:
            self._waiting.pop(envelope_id, None)

    def _acknowledge(self, text: str) -> None:
        try:
            said = json.loads(text)
            _, answer = self._waiting.pop(said["envelope_id"])
        except (ValueError, KeyError, TypeError):
            return  # nothing that anybody waits for
        payload = said.get("payload")
        answer.set_result("" if payload is None else json.dumps(payload))

    def _forget(self, socket: WebSocket) -> None:
        with self._lock:
            self._open.pop(socket, None)
            lost = [each for each in self._waiting.values() if each[0] is socket]
        for _, answer in lost:
            if not answer.done():
                answer.set_exception(ConnectionError(_GONE))
