"""What a function sends to X-Ray's daemon: a part with the run's id, and the calls of AWS."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

SCRIPT = """
import boto3
from botocore.config import Config
from stationmaster.invocations import guarded

def call():
    once = Config(retries={"total_max_attempts": 1}, connect_timeout=1)
    nobody = "http://127.0.0.1:1"
    try:
        boto3.client("sqs", "us-west-2", endpoint_url=nobody, config=once).list_queues()
    except Exception as error:
        return type(error).__name__

guarded(call, keys={"run_id": "tiny-llama-1", "step": "prepare_run", "batch_id": 7})
"""
OF_BOT = """
from stationmaster.invocations import about
from stationmaster.log_keys import learn

with about("request", {}):
    learn(run_id="tiny-llama-2")
"""
SAMPLED = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


@pytest.fixture
def daemon() -> socket.socket:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setblocking(False)
        yield listening


def sent(daemon: socket.socket) -> list[dict]:
    """Every part of a trace; what has been sent by a process that has ended is all here."""
    found = []
    while True:
        try:
            found.append(json.loads(daemon.recv(65536).partition(b"\n")[2]))
        except BlockingIOError:
            return found


def run(script: str, daemon: socket.socket) -> list[dict]:
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_XRAY_DAEMON_ADDRESS": f"127.0.0.1:{daemon.getsockname()[1]}",
        "LAMBDA_TASK_ROOT": "/var/task",
        "_X_AMZN_TRACE_ID": SAMPLED,
    }
    finished = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in finished.stdout.splitlines()]


def test_trace_is_found_by_the_run_and_shows_calls_of_aws(daemon: socket.socket):
    (line,) = run(SCRIPT, daemon)

    of_aws, of_step = sent(daemon)
    assert line["result"] == "EndpointConnectionError"
    assert of_step["name"] == "prepare_run"
    assert of_step["annotations"] == {"run_id": "tiny-llama-1", "step": "prepare_run"}
    assert (of_step["trace_id"], of_step["parent_id"]) == (
        "1-5759e988-bd862e3fe1be46a994272793",
        "53995c3f42cd8ad8",
    )
    assert (of_aws["name"], of_aws["aws"]["operation"]) == ("sqs", "ListQueues")
    assert of_aws["parent_id"] == of_step["id"]


def test_trace_of_a_request_is_found_by_the_run_that_it_was_learnt_to_be_about(
    daemon: socket.socket,
):
    run(OF_BOT, daemon)

    (of_request,) = sent(daemon)
    assert of_request["name"] == "request"
    assert of_request["annotations"] == {"run_id": "tiny-llama-2"}
