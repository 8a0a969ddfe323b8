"""Runs that go wrong: each ends in a clear card, an empty account and no pod left behind."""

import hmac
import os
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from e2e_world import world

from stationmaster.local.slack import TRAINING_CHANNEL_ID


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One healthy local mode for the cases whose fault is in the run itself."""
    with world(tmp_path_factory.mktemp("failures"), forks=True) as started:
        yield started


@pytest.fixture
def running_as_people_do(tmp_path):
    """A local mode whose trainers are children of their torchrun."""
    with world(tmp_path) as started:
        yield started


def processes():
    """Every process as pid -> (parent's pid, command line)."""
    if not Path("/proc/self/stat").exists():  # macOS
        listing = subprocess.run(
            ["ps", "-axwwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
        ).stdout
        rows = (line.split(maxsplit=2) for line in listing.splitlines())
        return {int(row[0]): (int(row[1]), row[2]) for row in rows if len(row) == 3}
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
        found[int(entry.name)] = (parent, command)
    return found


def torchruns(run_id):
    """Processes that run the torchrun of one of the run's pods, started or forked."""
    return {
        pid
        for pid, (_, command) in processes().items()
        if "torchrun" in command and run_id in command
    }


def trainers(run_id):
    """Training processes of the run: children of its torchrun."""
    parents = torchruns(run_id)
    return [
        pid
        for pid, (parent, command) in processes().items()
        if parent in parents and pid not in parents and "-m training" in command
    ]


def test_run_when_a_training_process_is_killed_resumes_from_the_checkpoint(running_as_people_do):
    running = running_as_people_do
    run_id = running.start("/train tiny-llama nodes=1 steps=20 checkpoint_every=5 seed=1")
    running.wait_for("checkpoint.saved")
    victims = trainers(run_id)
    assert victims, "no training process was found"

    os.kill(victims[0], signal.SIGKILL)
    run = running.wait_for_receipt(run_id)

    assert run.phase.value == "succeeded"
    assert run.progress.step == 20
    assert run.resumed_from_step >= 5
    assert "recovering" in run.phase_names
    card = str(running.card(run_id).blocks).lower()
    assert f"resumed from step {run.resumed_from_step} after a restart" in card
    thread = running.thread_text(run_id)
    assert f"restart 1: resumed from step {run.resumed_from_step}" in thread
    assert "was killed by SIGKILL\n> *a process was killed (SIGKILL)" in thread
    assert running.left(run_id) == []


def test_run_when_the_training_command_exits_1_fails_with_its_sentence(running):
    run_id = running.start("/train tiny-llama nodes=1 eval_every=9 eval_samples=900000 seed=2")
    run = running.wait_for_receipt(run_id)

    assert run.phase.value == "failed"
    assert "900000 held out by eval_samples" in run.reason
    card = str(running.card(run_id).blocks)
    assert "900000 held out by eval_samples" in card
    assert "*the data set is too small for what eval_samples= holds out of it*" in card
    assert "start it again with a smaller eval_samples=" in card
    assert "typed as `/train tiny-llama nodes=1 eval_every=9 eval_samples=900000 seed=2`" in card
    assert running.left(run_id) == []
    assert torchruns(run_id) == set()


def test_run_when_its_workflow_is_stopped_from_outside_is_torn_down(running):
    run_id = running.start("/train tiny-llama nodes=1 steps=2000 seed=3")
    running.wait(
        lambda: any(e.run_id == run_id for e in running.of_type("progress.reported")), "progress"
    )
    assert torchruns(run_id)
    arn = running.mode.settings.train_state_machine_arn.replace(":stateMachine:", ":execution:")

    running.mode.aws.client("stepfunctions").stop_execution(
        executionArn=f"{arn}:{run_id}", cause="stopped by a test"
    )
    run = running.wait_for_receipt(run_id)

    assert run.phase.value == "failed"
    assert "stopped from outside" in run.reason
    card = str(running.card(run_id).blocks)
    assert "stopped from outside" in card
    assert "workflow in AWS Step Functions was stopped" in card
    assert f"`/train resume {run_id}`" in card
    assert running.left(run_id) == []
    assert torchruns(run_id) == set()


@pytest.mark.parametrize(
    "text",
    [
        "/train no-such-recipe",
        "/train tiny-llama nodes=0",
        "/train tiny-llama nodes=two",
        "/train tiny-llama colour=red",
        '/train tiny-llama "nodes=2',
        "/train " + "x" * 10_000,
        "/train \U0001f680\U0001f525",
        "/train tiny-llama “nodes=two”",
    ],
    ids=["recipe", "zero", "word", "key", "quote", "long", "emoji", "curly"],
)
def test_bad_command_gets_one_ephemeral_answer_and_starts_nothing(running, text):
    runs_before = len(running.of_type("run.requested"))
    messages_before = len(running.mode.slack.messages(TRAINING_CHANNEL_ID))

    answer = running.type(text)

    assert answer.ok
    assert answer.response_type == "ephemeral"
    assert answer.text
    assert running.mode.aws.settle()
    assert len(running.of_type("run.requested")) == runs_before
    assert len(running.mode.slack.messages(TRAINING_CHANNEL_ID)) == messages_before


@pytest.mark.parametrize("more", ["", " allow_commands=true"])
def test_command_of_ones_own_is_refused_where_the_flag_was_not_typed(running, more):
    known = len(running.of_type("run.requested"))

    answer = running.type(f"/train ddp-cpu preset=smoke command='touch /tmp/x'{more}")

    assert "start it with --allow-commands" in answer.text
    assert len(running.of_type("run.requested")) == known


@pytest.mark.parametrize(
    ("age_s", "secret"), [(0, "not-the-secret"), (301, None)], ids=["forged", "stale"]
)
def test_request_with_a_bad_signature_gets_401_and_starts_nothing(running, age_s, secret):
    runs_before = len(running.of_type("run.requested"))
    body = urlencode({"command": "/train", "text": "tiny-llama nodes=2 seed=99"})
    stamp = str(int(time.time()) - age_s)
    credentials = running.services.secrets.slack()
    key = secret or credentials.signing_secret.get_secret_value()
    digest = hmac.new(key.encode(), f"v0:{stamp}:{body}".encode(), "sha256").hexdigest()

    answer = httpx.post(
        f"{running.mode.aws.http_url}/slack/events",
        content=body,
        headers={
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Slack-Request-Timestamp": stamp,
            "X-Slack-Signature": f"v0={digest}",
        },
    )

    assert answer.status_code == 401
    assert running.mode.aws.settle()
    assert len(running.of_type("run.requested")) == runs_before
