"""A server on this machine that answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stationmaster.settings import Settings

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""A status, what is sent as JSON or, if it is a text, as it is, and more headers."""

QWEN_CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
"""config.json of a small model, as the hub has it."""


class AnsweringServer(ThreadingHTTPServer):
    """Answers each request by its path, else with the queued answers in turn, the last for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Answer] = []
        self.of_paths: dict[str, Answer] = {}
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def say(self, *answers: Answer) -> None:
        self.answers = list(answers)

    def answer(self, path: str) -> Answer:
        if path in self.of_paths:
            return self.of_paths[path]
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class _Handler(BaseHTTPRequestHandler):
    server: AnsweringServer

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        self.server.may_answer.wait(600)
        status, body, *headers = self.server.answer(self.path)
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in [item for each in headers for item in each.items()]:
            self.send_header(name, value)
        with suppress(ConnectionError):  # who asked may have given up
            self.end_headers()
            self.wfile.write(data)

    do_POST = do_GET  # noqa: N815  # the base class looks methods up by these names
    do_PATCH = do_GET  # noqa: N815  # the base class looks methods up by these names

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def answering_server() -> Iterator[AnsweringServer]:
    server = AnsweringServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def settings(kubeconfig: str = "") -> Settings:
    return Settings(region="eu-west-1", table_name="t", bus_name="b", kubeconfig=kubeconfig)


def status(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}
