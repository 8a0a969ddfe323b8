"""Runs that go wrong: each ends in a clear card, an empty account and no pod left behind."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from e2e_world import world


@pytest.fixture
def running(tmp_path):
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


def test_run_when_a_training_process_is_killed_resumes_from_the_checkpoint(running):
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
