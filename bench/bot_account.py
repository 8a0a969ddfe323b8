"""An emulated account and a Slack that takes every message: all that the bot function touches.

    python -m bench.bot_account         (started by bench.bot; ends when its standard input does)

Prints one JSON object: the environment that makes a function use both. A process of its own, so
that the emulation's work does not run in the interpreter of the functions.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

from stationmaster.aws import table
from stationmaster.local.aws import (
    DeploymentSpec,
    InProcessRuntime,
    LocalAws,
    TableSpec,
)
from stationmaster.settings import Settings

SIGNING_SECRET: Final = "a-secret-of-this-benchmark-alone"
TABLE: Final = "runs"
# The workflow itself is no part of answering a command: starting it is.
_ENDS_AT_ONCE: Final = {"StartAt": "Done", "States": {"Done": {"Type": "Pass", "End": True}}}


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
        """Standard output is for the environment."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 64  # more than the functions that connect at once


@contextmanager
def _slack() -> Iterator[str]:
    """Start a Slack for as long as the context lives, and give its base URL."""
    server = _Server(("127.0.0.1", 0), _Slack)
    Thread(target=server.serve_forever, name="bench-slack", daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api/"
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    """Serve until standard input ends."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-aws-") as state,
        LocalAws(state_dir=Path(state), invoker=InProcessRuntime(), handlers=[]) as aws,
        _slack() as slack_api_url,
    ):
        aws.deploy(
            DeploymentSpec(
                tables=[
                    TableSpec(
                        name=TABLE,
                        partition_key=table.PARTITION_KEY,
                        sort_key=table.SORT_KEY,
                        indexes=table.INDEXES,
                    )
                ],
                secrets={
                    "slack": json.dumps(
                        {"bot_token": "xoxb-bench", "signing_secret": SIGNING_SECRET}
                    )
                },
                state_machines={"train": json.dumps(_ENDS_AT_ONCE)},
            )
        )
        settings = Settings(
            region=aws.region,
            table_name=TABLE,
            bus_name="default",
            train_state_machine_arn=aws.state_machine_arn("train"),
            slack_secret_id="slack",
            slack_api_url=slack_api_url,
        )
        print(json.dumps(settings.to_environment() | aws.environment()), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
