"""Runs Lambda handlers in processes of AWS's Lambda runtime interface client.

Each concurrent call of a function gets a warm process of its own with the function's environment,
fed over the Lambda Runtime API. A handler that passes its timeout is killed with its process.
"""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path

from stationmaster.local.aws.runtime import OVERRIDES, Function, error_payload
from stationmaster.local.loopback import ProgramsOnlyHandler

logger = logging.getLogger(__name__)

# A cold start imports the handler's packages; on two busy cores that can take long.
_INIT_TIMEOUT_S = 600.0
# Run by path: importing it as a module would import the whole endpoint into each function.
_WORKER = Path(__file__).with_name("ric_worker.py")
_API = "/2018-06-01/runtime"


@dataclass(frozen=True)
class _Call:
    request_id: str
    payload: bytes
    deadline_ms: int


@dataclass(frozen=True)
class _Answer:
    payload: bytes
    failed: bool


class RicRuntime:
    """Warm `awslambdaric` processes, one per concurrent call of a function."""

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        log_dir: Path | None = None,
        working_dir: Path | None = None,
    ) -> None:
        """`environment` is what every function gets beside its own variables (AWS_ENDPOINT_URL,
        ...)."""
        self._environment = dict(environment or {})
        self._log_dir = log_dir
        self._working_dir = working_dir or Path.cwd()
        self._idle: dict[str, list[_Worker]] = {}
        self._all: list[_Worker] = []
        self._guard = threading.Lock()
        self._closed = False

    def configure(self, environment: Mapping[str, str]) -> None:
        """Give every function these variables too; takes effect in processes that start later."""
        self._environment.update(environment)

    def invoke(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Run one invocation on a warm process, or on a new one."""
        worker = self._borrow(function)
        answer = worker.call(payload, timeout_s=function.timeout_s)
        if answer is None:
            worker.end()
            with self._guard:
                if worker in self._all:  # not if the runtime was closed meanwhile
                    self._all.remove(worker)
            return worker.post_mortem(function), True
        with self._guard:
            self._idle.setdefault(function.name, []).append(worker)
        return answer.payload, answer.failed

    @property
    def process_ids(self) -> list[int]:
        """The ids of the processes that live."""
        with self._guard:
            return [worker.pid for worker in self._all]

    def close(self) -> None:
        """End every process."""
        with self._guard:
            self._closed = True
            workers, self._all = self._all, []
            self._idle.clear()
        for worker in workers:
            worker.end()

    def _borrow(self, function: Function) -> _Worker:
        with self._guard:
            if self._closed:
                raise _closed(function)
            waiting = self._idle.get(function.name, [])
            while waiting:
                worker = waiting.pop()
                if worker.alive:
                    return worker
                self._all.remove(worker)
        worker = _Worker(
            function,
            environment=self._environment,
            log_dir=self._log_dir,
            working_dir=self._working_dir,
        )
        if not self._keep(worker):
            worker.end()
            raise _closed(function)
        return worker

    def _keep(self, worker: _Worker) -> bool:
        """Count it among those to end; not if the runtime was closed meanwhile."""
        with self._guard:
            if not self._closed:
                self._all.append(worker)
            return not self._closed


def _closed(function: Function) -> RuntimeError:
    return RuntimeError(f'function "{function.name}": the Lambda runtime is closed')


class _Worker:
    """One process and the Runtime API server that feeds it."""

    def __init__(
        self,
        function: Function,
        *,
        environment: Mapping[str, str],
        log_dir: Path | None,
        working_dir: Path,
    ) -> None:
        self._calls: queue.Queue[_Call | None] = queue.Queue()
        self._answers: queue.Queue[_Answer] = queue.Queue()
        self._polled = threading.Event()
        self._timed_out = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_class(self))
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name=f"runtime-api-{function.name}",
            daemon=True,
        ).start()
        variables = {
            **{name: value for name, value in os.environ.items() if name not in OVERRIDES},
            **environment,
            **function.environment,
            **function.credentials(),
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_port}",
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mib),
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
            "AWS_LAMBDA_LOG_STREAM_NAME": "local",
            "LAMBDA_TASK_ROOT": str(working_dir),
            "_HANDLER": function.handler,
        }
        self._arn = function.arn
        log = None if log_dir is None else (log_dir / f"{function.name}.log").open("ab")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER), function.handler],
                env=variables,
                cwd=working_dir,
                # The child ends when this pipe closes, however this process ends.
                stdin=subprocess.PIPE,
                stdout=log or subprocess.DEVNULL,
                stderr=log or subprocess.DEVNULL,
            )
        finally:
            if log is not None:
                log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, payload: bytes, *, timeout_s: float) -> _Answer | None:
        """Return the handler's answer, or None when the process ended or ran out of time."""
        init_deadline = time.monotonic() + _INIT_TIMEOUT_S
        # The function's own time starts once its process asks for work, as in the service.
        while not self._polled.wait(0.02):
            if not self.alive or time.monotonic() > init_deadline:
                return self._reported()
        deadline_ms = int((time.time() + timeout_s) * 1000)
        self._calls.put(_Call(str(uuid.uuid4()), payload, deadline_ms))
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                return self._answers.get(timeout=min(0.1, max(0.001, deadline - time.monotonic())))
            except queue.Empty:
                if not self.alive:
                    return self._reported()
        self._timed_out = True
        return None

    def end(self) -> None:
        """Kill the process and stop the server."""
        self._calls.put(None)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._server.shutdown()
        self._server.server_close()

    def post_mortem(self, function: Function) -> bytes:
        """Return Lambda's error for a process that did not answer."""
        if self._timed_out:
            return error_payload(
                error_type="Sandbox.Timedout",
                message=f"Error: Task timed out after {function.timeout_s:.2f} seconds",
            )
        return error_payload(
            error_type="Runtime.ExitError",
            message=f"Error: Runtime exited with error: exit status {self._process.returncode}",
        )

    def _reported(self) -> _Answer | None:
        try:
            return self._answers.get_nowait()
        except queue.Empty:
            return None

    def next_call(self) -> _Call | None:
        """Wait for work; called by the Runtime API server."""
        self._polled.set()
        return self._calls.get()

    def answer(self, payload: bytes, *, failed: bool) -> None:
        """Take the handler's result; called by the Runtime API server."""
        self._answers.put(_Answer(payload, failed))

    @property
    def function_arn(self) -> str:
        return self._arn


class _RuntimeApi(ProgramsOnlyHandler):
    """The Lambda Runtime API for one process."""

    worker: _Worker

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:  # noqa: N802  # the name is http.server's
        call = self.worker.next_call() if self.path == f"{_API}/invocation/next" else None
        if call is None:
            self._reply(410, b"")
            return
        self._reply(
            200,
            call.payload,
            {
                "Lambda-Runtime-Aws-Request-Id": call.request_id,
                "Lambda-Runtime-Deadline-Ms": str(call.deadline_ms),
                "Lambda-Runtime-Invoked-Function-Arn": self.worker.function_arn,
                "Content-Type": "application/json",
            },
        )

    def do_POST(self) -> None:  # noqa: N802  # the name is http.server's
        body = self._body()
        if self.path.endswith(("/response", "/error")):
            self.worker.answer(body, failed=self.path.endswith("/error"))
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

    def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("runtime api", extra={"request": format % args})


def _handler_class(worker: _Worker) -> type[ProgramsOnlyHandler]:
    return type("RuntimeApi", (_RuntimeApi,), {"worker": worker})
