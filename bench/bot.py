"""The bot function: what a cold start costs, and how fast warm functions answer.

Warm handling is measured as Lambda runs it: one process a function environment, one request at a
time in each, 20 of them at once, through the shipped handler, with signed requests. The local AWS
endpoint and a Slack that takes every message are in this process, which answers one call at a time,
so the wait for its answers says nothing of AWS and Slack, and the figure leaves it out.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlencode

from bench.figures import Figure, percentile
from stationmaster.aws.table import table_definition
from stationmaster.local.aws import (
    DeploymentSpec,
    InProcessRuntime,
    LocalAws,
)
from stationmaster.local.slack.app_requests import sign
from stationmaster.settings import Settings

NUM_CONCURRENT: Final = 20
IMPORTS: Final = 9
# What is typed, and how often in each of the 20, after two that are not counted.
_HANDLINGS: Final = {
    "help": ("help", 15),
    "status": ("status", 15),
    "start": ("tiny-llama nodes=2 steps=60", 5),
}
_SECRET: Final = "a-secret-of-this-benchmark-alone"
# The workflow itself is no part of answering a command: starting it is.
_ENDS_AT_ONCE: Final = {"StartAt": "Done", "States": {"Done": {"Type": "Pass", "End": True}}}


def measure_import() -> list[Figure]:
    """CPU time of importing the entry point in a new interpreter, less the bare interpreter's.

    Bytecode is compiled before, as it is in a deployed package.
    """
    _cpu_ms("import bot.lambda_handler")
    pairs = [(_cpu_ms("pass"), _cpu_ms("import bot.lambda_handler")) for _ in range(IMPORTS)]
    bare, whole = (statistics.median(times) for times in zip(*pairs, strict=True))
    return [
        Figure(
            name="bot-import CPU",
            value=whole - bare,
            unit="ms",
            at_most=300,
            note=f"median of {IMPORTS}; bare interpreter {bare:.0f} ms taken off",
        )
    ]


def _cpu_ms(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure_handling() -> list[Figure]:
    """Wall clock without waits of warm handlings of `/train help`, `status` and a start."""
    figures = []
    with _account() as environment:
        spawn = multiprocessing.get_context("spawn")
        together = spawn.Barrier(NUM_CONCURRENT)
        with ProcessPoolExecutor(
            NUM_CONCURRENT, mp_context=spawn, initializer=_warm_up, initargs=(environment, together)
        ) as functions:
            for kind in _HANDLINGS:
                rounds = functions.map(_handle_many, [kind] * NUM_CONCURRENT)
                times = [one for handled in rounds for one in handled]
                figures.append(
                    Figure(
                        name=f"bot-handling {kind}, p99 at {NUM_CONCURRENT}",
                        value=percentile(times, 99),
                        unit="ms",
                        at_most=50,
                        note=f"of {len(times)}, median {percentile(times, 50):.2f}",
                    )
                )
    return figures


class _Slack(BaseHTTPRequestHandler):
    """Answers every call as chat.postMessage does; the local Slack would keep Slack's rates."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave together: the body is read outside of the time on the wire

    def do_POST(self) -> None:
        """Take a message."""
        channel = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["channel"]
        answer = json.dumps({"ok": True, "channel": channel, "ts": "1700000000.000100"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Log nothing: the terminal is for the figures."""


class _SlackServer(ThreadingHTTPServer):
    request_queue_size = 64  # more than the functions that connect at once


@contextmanager
def _account() -> Iterator[dict[str, str]]:
    """Give the environment of a function in an emulated account, for as long as the context."""
    secret = json.dumps({"bot_token": "xoxb-bench", "signing_secret": _SECRET})
    with (
        tempfile.TemporaryDirectory(prefix="bench-aws-") as state,
        LocalAws(state_dir=Path(state), invoker=InProcessRuntime(), handlers=[]) as aws,
        _SlackServer(("127.0.0.1", 0), _Slack) as slack,
    ):
        Thread(target=slack.serve_forever, name="bench-slack", daemon=True).start()
        aws.deploy(
            DeploymentSpec(
                tables=[table_definition("runs")],
                secrets={"slack": secret},
                state_machines={"train": json.dumps(_ENDS_AT_ONCE)},
            )
        )
        settings = Settings(
            region=aws.region,
            table_name="runs",
            bus_name="default",
            train_state_machine_arn=aws.state_machine_arn("train"),
            slack_secret_id="slack",
            slack_api_url=f"http://127.0.0.1:{slack.server_port}/api/",
        )
        yield settings.to_environment() | aws.environment()
        slack.shutdown()


class _Warm:
    """What one function environment keeps."""

    waited_s = 0.0
    """How long calls to AWS and Slack were on the wire, in all."""
    together: Barrier
    handler: Callable[[dict[str, Any], Any], dict[str, Any]]


def _timed(call: Callable[..., Any]) -> Callable[..., Any]:
    def timed_call(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            _Warm.waited_s += time.perf_counter() - began

    return timed_call


def _warm_up(environment: Mapping[str, str], together: Barrier) -> None:
    os.environ.update(environment)
    # All after the environment, which clients read.
    from botocore.httpsession import URLLib3Session
    from slack_sdk.web import base_client

    from bot import lambda_handler

    vars(base_client)["urlopen"] = _timed(vars(base_client)["urlopen"])
    setattr(URLLib3Session, "send", _timed(URLLib3Session.send))  # noqa: B010  # mypy refuses the other
    _Warm.together, _Warm.handler = together, lambda_handler.handler


def _handle_many(kind: str) -> list[float]:
    """Handle two requests to get warm and then, together with the others, those that count."""
    text, count = _HANDLINGS[kind]
    if kind == "status":
        _handle(_HANDLINGS["start"][0])
    for _ in range(2):
        _handle(text)
    # Every environment takes one task, because none passes before all are here.
    _Warm.together.wait(timeout=60)
    return [_handle(text) for _ in range(count)]


def _handle(text: str) -> float:
    """Return how many milliseconds it took, without what was waited for."""
    event = _signed_event(text)
    context = SimpleNamespace(function_name="bot", invoked_function_arn="arn:aws:lambda:bot")
    began = time.perf_counter() - _Warm.waited_s
    answer = _Warm.handler(event, context)
    took_s = time.perf_counter() - _Warm.waited_s - began
    shown = json.loads(answer["body"])
    if answer["statusCode"] != 200 or "blocks" not in shown or "went wrong" in shown["text"]:
        raise RuntimeError(f'"/train {text}" was answered with {answer}; expected a 200 and blocks')
    return 1000 * took_s


def _signed_event(text: str) -> dict[str, Any]:
    """Return an API Gateway event of a command from a person and a channel that nobody else is."""
    body = urlencode(
        {
            "team_id": "T0BENCH",
            "channel_id": f"C{uuid.uuid4().hex[:10].upper()}",
            "user_id": f"U{uuid.uuid4().hex[:10].upper()}",
            "command": "/train",
            "text": text,
            "trigger_id": uuid.uuid4().hex,
            "response_url": "http://127.0.0.1:9/unused",
        }
    )
    timestamp = str(int(time.time()))
    return {
        "version": "2.0",
        "routeKey": "POST /slack/events",
        "rawPath": "/slack/events",
        "headers": {
            "content-type": "application/x-www-form-urlencoded",
            "x-slack-request-timestamp": timestamp,
            "x-slack-signature": sign(_SECRET, timestamp=timestamp, body=body),
        },
        "requestContext": {"http": {"method": "POST", "path": "/slack/events"}},
        "body": body,
        "isBase64Encoded": False,
    }
