"""Runs that go wrong: each ends in a clear card, an empty account and no pod left behind."""

import os
import shutil
import signal
from pathlib import Path

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


@pytest.mark.skipif(
    shutil.which("etcd") is None or not Path("/proc/self/environ").exists(),
    reason="needs etcd (apt-get install etcd-server) and Linux",
)
def test_first_worker_that_dies_finds_the_other_agent_waiting_at_a_real_etcd(running, tmp_path):
    pytest.importorskip("etcd", reason="python-etcd is not installed")
    run_id = running.start(
        "/train tiny-llama nodes=2 rendezvous=etcd steps=30 checkpoint_every=5 seed=1"
    )
    running.wait_for("checkpoint.saved")
    servers, workers = programs("etcd --enable-v2", str(tmp_path)), agents(run_id)
    assert (len(servers), sorted(workers)) == (1, [f"{run_id}-worker-0", f"{run_id}-worker-1"])

    os.kill(workers[f"{run_id}-worker-0"], signal.SIGKILL)
    running.wait_for("training.resumed")
    after = agents(run_id)
    run = running.wait_for_receipt(run_id)

    # With c10d the first worker hosts the rendezvous, and every agent starts again with it.
    assert after[f"{run_id}-worker-1"] == workers[f"{run_id}-worker-1"]
    assert after[f"{run_id}-worker-0"] != workers[f"{run_id}-worker-0"]
    assert (run.phase.value, run.progress.step, run.attempt_number) == ("succeeded", 30, 1)
    assert run.resumed_from_step >= 5
    assert running.left(run_id) == []
    assert not programs("etcd --enable-v2", str(tmp_path))


def programs(name, where):
    """Processes that run a program with `where` among its words, without what supervises them."""
    return [
        pid
        for pid, (_, command) in processes().items()
        if name in command and where in command and "supervisor.py" not in command
    ]


def agents(run_id):
    """The torchrun of each of the run's pods, by the pod's name."""
    found = {}
    for pid in programs("torchrun", run_id):
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        name = next(each for each in variables if each.startswith("HOSTNAME="))
        found[name.partition("=")[2]] = pid
    return found
