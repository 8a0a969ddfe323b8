"""A Slack Web API on loopback that records its calls, and fails when a test says so.

Blocks are checked against Slack's limits on every call, so a message that Slack would refuse fails
here too. It is smaller than the local Slack on purpose: every answer is under the test's control.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from stationmaster.local.slack.blocks import check_blocks, check_view, total_text
from tests.support.slack_models import refused_by_models


@dataclass
class Call:
    """One accepted call."""

    method: str
    arguments: dict[str, Any]
    token: str = ""
    ts: str = ""

    @property
    def blocks(self) -> list[dict[str, Any]]:
        return self.arguments.get("blocks") or []

    @property
    def seen(self) -> str:
        """All that a person reads in the message."""
        return json.dumps(self.blocks, ensure_ascii=False)


@dataclass
class Refusal:
    """An answer to give to the next call of a method, which may have been carried out or not."""

    status: int = 200
    error: str = "internal_error"
    headers: dict[str, str] = field(default_factory=dict)
    carried_out: bool = False


class RecordingSlack:
    """Start with `start`, point a WebClient at `api_url`, look at `calls`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.responses: list[Call] = []
        self.visits: list[str] = []
        self.uploads: list[bytes] = []
        self.attempts: list[str] = []
        self.refusals: dict[str, deque[Refusal]] = defaultdict(deque)
        # Kinds of blocks that the workspace does not have.
        self.lacks: set[str] = set()
        # Channels that refuse every call, with Slack's word for why.
        self.lost: dict[str, str] = {}
        self.installed: dict[str, Any] = {}  # what oauth.v2.access adds
        self.groups: dict[str, list[str]] = {}
        self.when_posted: Callable[[Call], None] = lambda call: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler_class())
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def api_url(self) -> str:
        return f"{self.url}/api/"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def refuse(self, method: str, *refusals: Refusal) -> None:
        """Answer the method's next calls so; `upload` is the address that takes pictures."""
        self.refusals[method].extend(refusals)

    def of(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    @property
    def card(self) -> Call:
        """The card as the channel sees it now."""
        edits = self.of("chat.update")
        return edits[-1] if edits else self.cards[0]

    @property
    def cards(self) -> list[Call]:
        """Every card that was posted and not deleted."""
        deleted = {call.arguments["ts"] for call in self.of("chat.delete")}
        posts = self.of("chat.postMessage")
        return [
            call for call in posts if "thread_ts" not in call.arguments and call.ts not in deleted
        ]

    @property
    def thread(self) -> list[Call]:
        return [call for call in self.of("chat.postMessage") if call.arguments.get("thread_ts")]

    def answer(
        self, path: str, arguments: dict[str, Any], raw: bytes, token: str = ""
    ) -> tuple[int, dict, Any]:
        if path.startswith("/upload/"):
            if self.refusals["upload"]:
                return self.refusals["upload"].popleft().status, {}, "refused"
            self.uploads.append(raw)
            return 200, {}, "OK"
        if path.startswith("/redirect/"):
            return 302, {"Location": f"{self.url}/elsewhere"}, ""
        if path.startswith("/response/"):
            blocks = arguments.get("blocks") or []
            assert check_blocks(blocks) + refused_by_models(blocks) == []
            self.responses.append(Call("response_url", arguments))
            return 200, {}, "ok"
        method = path.removeprefix("/api/")
        self.attempts.append(method)
        channel = arguments.get("channel") or arguments.get("channel_id")
        if channel in self.lost:
            return 200, {}, {"ok": False, "error": self.lost[channel]}
        refusal = self.refusals[method].popleft() if self.refusals[method] else None
        if refusal is not None and not refusal.carried_out:
            return refusal.status, refusal.headers, {"ok": False, "error": refusal.error}
        for index, block in enumerate(arguments.get("blocks") or []):
            if block["type"] in self.lacks:
                named = f"unsupported type: {block['type']} [json-pointer:/blocks/{index}/type]"
                more = {"response_metadata": {"messages": [named]}}
                return 200, {}, {"ok": False, "error": "invalid_blocks", **more}
        view = arguments.get("view", {})
        blocks = view.get("blocks") or arguments.get("blocks") or []
        problems = (check_view(view) if view else check_blocks(blocks)) + refused_by_models(blocks)
        if problems or total_text(arguments.get("blocks")) > 13_200:
            return 200, {}, {"ok": False, "error": f"invalid_blocks {problems}"}
        if method.startswith("conversations."):
            return 200, {}, {"ok": True, **self._read(method, arguments)}
        call = Call(method, arguments, token, ts=f"1000.{len(self.calls) + 1:06d}")
        self.calls.append(call)
        if method == "chat.postMessage":
            self.when_posted(call)
        if refusal is not None:
            return refusal.status, refusal.headers, {"ok": False, "error": refusal.error}
        return 200, {}, {"ok": True, **self._result(call)}

    def _read(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if method == "conversations.open":
            return {"channel": {"id": "D0" + arguments["users"][2:]}}
        place = (arguments["channel"], arguments.get("ts"))
        posts = [
            call
            for call in self.of("chat.postMessage")
            if (call.arguments["channel"], call.arguments.get("thread_ts")) == place
        ]
        messages = [{"ts": call.ts, "metadata": call.arguments["metadata"]} for call in posts]
        return {"messages": messages[::-1], "response_metadata": {"next_cursor": ""}}

    def _result(self, call: Call) -> dict[str, Any]:
        match call.method:
            case "chat.postMessage":
                return {"ts": call.ts, "channel": call.arguments["channel"]}
            case "files.getUploadURLExternal":
                return {"upload_url": f"{self.url}/upload/1", "file_id": "F1"}
            case "files.completeUploadExternal":
                return {"files": [{"id": "F1", "title": "chart"}]}
            case "views.open" | "views.update" | "views.publish":
                return {"view": {**call.arguments["view"], "id": "V1", "hash": "1.a"}}
            case "oauth.v2.access":
                new = {"access_token": "xoxb-2", "refresh_token": "xoxe-2", "expires_in": 43_200}
                return {"token_type": "bot", **new, **self.installed}
            case "auth.test":
                return {"team_id": "T0TEAM"}
            case "usergroups.users.list":
                return {"users": self.groups[call.arguments["usergroup"]]}
            case _:
                return {}

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        slack = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                arguments: dict[str, Any] = {}
                kind = self.headers.get("Content-Type", "")
                if self.path.startswith("/upload/"):
                    pass  # a picture, whatever urllib calls it
                elif kind.startswith("application/json") and raw:
                    arguments = json.loads(raw)
                elif kind.startswith("application/x-www-form-urlencoded"):
                    arguments = dict(parse_qsl(raw.decode(), keep_blank_values=True))
                    for name in ("blocks", "files", "metadata"):
                        if isinstance(arguments.get(name), str):
                            arguments[name] = json.loads(arguments[name])
                self._send(*slack.answer(self.path, arguments, raw, self._token()))

            def _token(self) -> str:
                return self.headers.get("Authorization", "").removeprefix("Bearer ")

            def _send(self, status: int, headers: dict[str, str], body: Any) -> None:
                sent = body if isinstance(body, str) else json.dumps(body)
                self.send_response(status)
                is_text = isinstance(body, str)
                self.send_header("Content-Type", "text/plain" if is_text else "application/json")
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(sent.encode())

            def do_GET(self) -> None:
                slack.visits.append(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: test output stays readable."""

        return Handler
