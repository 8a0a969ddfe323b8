"""A worker whose agent dies, and one that its agent is about to stop."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from trainer_runs import TORCHRUN, Workspace, is_alive, parse_lines, wait_until

from training.elastic import wait_for_own_sigterm


def test_elastic_orphaned_worker_ends_soon_after_its_agent(tmp_path: Path) -> None:
    started = tmp_path / "worker"
    worker_program = (
        "import os, sys, threading; from pathlib import Path; "
        "from training.elastic import exit_with_parent; exit_with_parent(); "
        f"Path({str(started)!r}).write_text(str(os.getpid())); threading.Event().wait(60)"
    )
    agent_program = (
        "import subprocess, sys; "
        f"subprocess.run([sys.executable, '-c', {worker_program!r}], start_new_session=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", agent_program], stderr=subprocess.DEVNULL)
    wait_until(lambda: started.exists() and bool(started.read_text()), what="the worker's start")
    worker = int(started.read_text())

    process.kill()
    process.wait(timeout=1800)

    wait_until(lambda: not is_alive(worker), what="the end of the orphan")


def test_elastic_agent_does_not_try_again_what_cannot_succeed(workspace: Workspace) -> None:
    finished = subprocess.run(
        [
            *TORCHRUN,
            *("--standalone", "--nproc-per-node", "2", "--max-restarts", "3"),
            *("--local-addr", "127.0.0.1"),
            *("-m", "training", *workspace.arguments("stepz=3")),
        ],
        env=workspace.environ(),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )

    assert finished.returncode == 1
    # By the first worker, and by the second if it came so far before the agent ended it.
    assert 1 <= finished.stderr.count('has no key "stepz"') <= 2
    (failed,) = parse_lines(finished.stdout)
    assert (failed["kind"], failed.get("restarting")) == ("failed", None)


def test_elastic_end_agent_spares_a_parent_that_is_not_torchrun() -> None:
    # This process would end: its parent is not torchrun, whatever the environment says.
    program = (
        "import subprocess, sys; "
        "child = 'from training.elastic import end_agent; "
        'print(end_agent({\\"TORCHELASTIC_RUN_ID\\": \\"r\\"}))\'; '
        "sys.exit(subprocess.run([sys.executable, '-c', child]).returncode)"
    )

    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=1800, check=False
    )

    assert (finished.returncode, finished.stdout) == (0, "False\n"), finished.stderr


def test_elastic_worker_that_stops_with_others_waits_for_its_own_signal() -> None:
    stop = threading.Event()
    signal_comes = threading.Timer(0.3, stop.set)
    signal_comes.start()

    wait_for_own_sigterm(stop)

    assert stop.is_set()
    signal_comes.join()
