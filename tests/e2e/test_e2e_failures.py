"""Runs that go wrong: each ends in a clear card, an empty account and no pod left behind."""

import os
import signal

import pytest
from e2e_world import processes, torchruns, world


@pytest.fixture
def running(tmp_path):
    """A local mode whose trainers are children of their torchrun."""
    with world(tmp_path) as started:
        yield started


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
