"""Runs Lambda handlers in processes of AWS's own runtime interface client, `awslambdaric`.

Each call of a function that comes while others run gets a process of its own, which stays for later
calls; the Lambda Runtime API feeds it. A process whose parent was killed ends at its next question.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from stationmaster.local.aws.runtime import OVERRIDES, Function, error_payload

_Call = tuple[str, bytes]


class LambdaProcesses:
    """A runtime for `LocalMode`; each function writes the file of its name in `log_dir`."""

    def __init__(self, *, log_dir: Path, working_dir: Path) -> None:
        self._environment: dict[str, str] = {}
        self._log_dir, self._working_dir = log_dir, working_dir
        self._idle: defaultdict[str, queue.SimpleQueue[_Process]] = defaultdict(queue.SimpleQueue)
        self._all: list[_Process] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def configure(self, environment: Mapping[str, str]) -> None:
        """Give every function these variables too."""
        self._environment.update(environment)

    def invoke(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Return the response payload and whether the function failed."""
        try:
            process = self._idle[function.name].get_nowait()
        except queue.Empty:
            with self._lock, (self._log_dir / f"{function.name}.log").open("ab") as log:
                if self._is_closed:
                    return _ended("the runtime is closed")
                process = _Process(function, self._environment, log.fileno(), self._working_dir)
                self._all.append(process)
        answer = process.call(payload)
        self._idle[function.name].put(process)
        return answer

    def close(self) -> None:
        """End every process; a call that comes later, of a schedule say, fails."""
        with self._lock:
            self._is_closed = True
        for process in self._all:
            process.end()


class _Process:
    """One process and the server that feeds it."""

    def __init__(
        self, function: Function, environment: Mapping[str, str], log: int, working_dir: Path
    ) -> None:
        self.arn, self.timeout_s = function.arn, function.timeout_s
        self.calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[bytes, bool]] = queue.SimpleQueue()
        served = type("RuntimeApi", (_RuntimeApi,), {"process": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), served)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        assert function.key is not None, "every function of the product has a role"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "awslambdaric", function.handler],
            env={
                **{name: text for name, text in os.environ.items() if name not in OVERRIDES},
                **environment,
                **function.environment,
                "AWS_ACCESS_KEY_ID": function.key.key_id,
                "AWS_SECRET_ACCESS_KEY": function.key.secret,
                "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_port}",
                "AWS_LAMBDA_FUNCTION_NAME": function.name,
                "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",  # in MiB; the runtime only needs a number
                "_HANDLER": function.handler,
            },
            cwd=working_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def call(self, payload: bytes) -> tuple[bytes, bool]:
        """Return the handler's answer."""
        self.calls.put((str(uuid.uuid4()), payload))
        while True:
            try:
                return self.answers.get(timeout=0.2)
            except queue.Empty:
                ended = self._process.poll()
                if ended is not None:
                    return _ended(f"its process ended with {ended}")

    def end(self) -> None:
        """Kill the process and stop the server."""
        self.calls.put(None)
        self._process.kill()
        self._process.wait()
        self._server.shutdown()
        self._server.server_close()


def _ended(message: str) -> tuple[bytes, bool]:
    """Return what Lambda answers for a process that is gone: a failed call, no exception."""
    return error_payload(error_type="Runtime.ExitError", message=message), True


class _RuntimeApi(BaseHTTPRequestHandler):
    """The Lambda Runtime API for one process."""

    process: _Process
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        call = self.process.calls.get()
        if call is None:
            self._reply(410, b"")
            return
        request_id, payload = call
        headers = {
            "Lambda-Runtime-Aws-Request-Id": request_id,
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + self.process.timeout_s) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": self.process.arn,
            "Content-Type": "application/json",
        }
        self._reply(200, payload, headers)

    def do_POST(self) -> None:
        self.process.answers.put((self._body(), self.path.endswith("/error")))
        self._reply(202, b'{"status":"OK"}')

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output clean."""
