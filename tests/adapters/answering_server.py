"""An API server that answers as a test says."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stationmaster.settings import Settings


class AnsweringServer(ThreadingHTTPServer):
    """Answers every request with the queued answers in turn, the last one for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, Any]] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    def say(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)


class _Handler(BaseHTTPRequestHandler):
    server: AnsweringServer

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        answers = self.server.answers
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET  # noqa: N815  # the base class looks methods up by these names
    do_PATCH = do_GET  # noqa: N815  # the base class looks methods up by these names

    def log_message(self, format: str, *args: Any) -> None:
        return


def settings(kubeconfig: str = "") -> Settings:
    return Settings(region="eu-west-1", table_name="t", bus_name="b", kubeconfig=kubeconfig)


def status(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}
