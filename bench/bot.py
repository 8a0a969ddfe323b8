"""The bot function: what a cold start costs, and how fast warm functions answer.

Warm handling is measured as Lambda runs it: one process a function environment, one request at a
time in each, 20 of them at once, through the shipped handler, with signed requests, against the
local AWS endpoint in a process of its own, which also takes the card that a start posts. That is
one Python process and answers one call at a time, so the wait for its answers says nothing of AWS
and Slack. The figure that has a target leaves it out; the wall clock with it, and the CPU time of a
request, are reported beside it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlencode

from bench.bot_account import SIGNING_SECRET
from bench.figures import AtMost, Figure, percentile

NUM_CONCURRENT: Final = 20
IMPORTS: Final = 9
# Each of the 20 handles so many, after two that are not counted.
_HANDLINGS: Final = {"help": 15, "status": 15, "start": 5}
_REPOSITORY: Final = Path(__file__).resolve().parent.parent


def measure_import() -> list[Figure]:
    """CPU time of importing the entry point in a new interpreter, less the bare interpreter's.

    Bytecode is compiled before, as it is in a deployed package.
    """
    _cpu_ms("import bot.lambda_handler")
    pairs = [(_cpu_ms("pass"), _cpu_ms("import bot.lambda_handler")) for _ in range(IMPORTS)]
    bare = statistics.median(bare for bare, _ in pairs)
    whole = statistics.median(whole for _, whole in pairs)
    best = min(whole for _, whole in pairs)
    return [
        Figure(
            name="bot-import CPU",
            value=whole - bare,
            unit="ms",
            target=AtMost(300),
            note=f"median of {IMPORTS}; bare interpreter {bare:.0f} ms taken off; "
            f"best {best - bare:.0f}",
        )
    ]


def _cpu_ms(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=_REPOSITORY)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * used


def measure_handling() -> list[Figure]:
    """Wall clock and CPU of warm handlings of `/train help`, `status` and a start."""
    figures = []
    with _account() as environment:
        spawn = multiprocessing.get_context("spawn")
        together = spawn.Barrier(NUM_CONCURRENT)
        with ProcessPoolExecutor(
            NUM_CONCURRENT, mp_context=spawn, initializer=_warm_up, initargs=(environment, together)
        ) as functions:
            for kind, count in _HANDLINGS.items():
                rounds = functions.map(
                    _handle_many, [kind] * NUM_CONCURRENT, [count] * NUM_CONCURRENT
                )
                times = [one for handled in rounds for one in handled]
                figures.append(_handling_figure(kind, times))
    return figures


def _handling_figure(kind: str, times: Sequence[_Times]) -> Figure:
    own = [1000 * (one.wall_s - one.wait_s) for one in times]
    wall = [1000 * one.wall_s for one in times]
    cpu = [1000 * one.cpu_s for one in times]
    return Figure(
        name=f"bot-handling {kind}, p99 at {NUM_CONCURRENT}",
        value=percentile(own, 99),
        unit="ms",
        target=AtMost(50),
        note=f"of {len(times)}, median {percentile(own, 50):.2f}; CPU median "
        f"{percentile(cpu, 50):.2f}, p99 {percentile(cpu, 99):.2f}; with the emulation's answers "
        f"median {percentile(wall, 50):.0f}, p99 {percentile(wall, 99):.0f}",
    )


@contextmanager
def _account() -> Iterator[dict[str, str]]:
    """Give the environment of a function in an emulated account, for as long as the context."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.bot_account"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=_REPOSITORY,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = process.stdout.readline()
        if not first:
            raise RuntimeError(f"the emulated account exited {process.wait(timeout=10)} at once")
        environment: dict[str, str] = json.loads(first)
        try:
            yield environment
        finally:
            process.stdin.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Seconds of one handling."""

    wall_s: float
    cpu_s: float
    wait_s: float


class _Wait:
    """Adds up how long calls to AWS and Slack were on the wire."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sent = 0.0

    def sent(self, **_: object) -> None:
        """Note that a request is about to go out."""
        self._sent = time.perf_counter()

    def answered(self, **_: object) -> None:
        """Note that its answer is there."""
        self.seconds += time.perf_counter() - self._sent

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Make `call` and add its time."""

        def timed_call(*arguments: Any, **named: Any) -> Any:
            self.sent()
            try:
                return call(*arguments, **named)
            finally:
                self.answered()

        return timed_call


class _Warm:
    """What one function environment keeps: the barrier, and the loaded handler."""

    wait = _Wait()
    together: Barrier | None = None
    handler: Callable[[dict[str, Any], Any], dict[str, Any]] | None = None


def _warm_up(environment: Mapping[str, str], together: Barrier) -> None:
    os.environ.update(environment)
    import boto3  # all after the environment, which clients read
    from slack_sdk.web import base_client

    from bot import lambda_handler

    boto3.setup_default_session()
    assert boto3.DEFAULT_SESSION is not None
    boto3.DEFAULT_SESSION.events.register("before-send", _Warm.wait.sent)
    boto3.DEFAULT_SESSION.events.register("response-received", _Warm.wait.answered)
    vars(base_client)["urlopen"] = _Warm.wait.timed(vars(base_client)["urlopen"])
    _Warm.together, _Warm.handler = together, lambda_handler.handler


def _handle_many(kind: str, count: int) -> list[_Times]:
    """Handle two requests to get warm and then, together with the others, `count` more."""
    assert _Warm.together is not None
    texts = {"help": "help", "status": "status", "start": "tiny-llama nodes=2 steps=60"}
    if kind == "status":
        _handle(texts["start"])
    for _ in range(2):
        _handle(texts[kind])
    # Every environment takes one task, because none passes before all are here.
    _Warm.together.wait(timeout=60)
    return [_handle(texts[kind]) for _ in range(count)]


def _handle(text: str) -> _Times:
    assert _Warm.handler is not None
    event = _signed_event(text)
    context = SimpleNamespace(function_name="bot", invoked_function_arn="arn:aws:lambda:bot")
    wall, cpu, waited = time.perf_counter(), time.process_time(), _Warm.wait.seconds
    answer = _Warm.handler(event, context)
    used = _Times(
        wall_s=time.perf_counter() - wall,
        cpu_s=time.process_time() - cpu,
        wait_s=_Warm.wait.seconds - waited,
    )
    shown = json.loads(answer["body"])
    if answer["statusCode"] != 200 or "blocks" not in shown or "went wrong" in shown["text"]:
        raise RuntimeError(f'"/train {text}" was answered with {answer}; expected a 200 and blocks')
    return used


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
    digest = hmac.new(
        SIGNING_SECRET.encode(), f"v0:{timestamp}:{body}".encode(), hashlib.sha256
    ).hexdigest()
    return {
        "version": "2.0",
        "routeKey": "POST /slack/events",
        "rawPath": "/slack/events",
        "headers": {
            "content-type": "application/x-www-form-urlencoded",
            "x-slack-request-timestamp": timestamp,
            "x-slack-signature": f"v0={digest}",
        },
        "requestContext": {"http": {"method": "POST", "path": "/slack/events"}},
        "body": body,
        "isBase64Encoded": False,
    }
