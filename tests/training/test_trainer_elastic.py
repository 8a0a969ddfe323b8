"""Processes that die: a worker under two agents, and an agent under its worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from trainer_runs import (
    Lines,
    Workspace,
    agent,
    child_of,
    free_port,
    losses,
    of_kind,
    parse_lines,
    wait_until,
)


def test_elastic_killed_worker_resumes_from_the_newest_complete_checkpoint(
    workspace: Workspace, tmp_path: Path
) -> None:
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    port = free_port()

    def lines() -> Lines:
        texts = [log.read_text() for log in logs]
        whole = [text[: text.rfind("\n") + 1] for text in texts]
        return sorted(parse_lines("".join(whole)), key=lambda line: line["seq"])

    with ExitStack() as stack:
        keys = ("steps=60", "checkpoint_every=20")
        agents = [stack.enter_context(agent(workspace, *keys, port=port, log=log)) for log in logs]
        wait_until(lambda: len(of_kind(lines(), "checkpoint_saved")) == 1, what="a checkpoint")
        worker = child_of(agents[1].pid)
        assert worker is not None

        os.kill(worker, signal.SIGKILL)
        codes = [process.wait(timeout=120) for process in agents]

    seen = lines()
    resumed = of_kind(seen, "resumed")
    assert codes == [0, 0]
    assert [line["kind"] for line in seen].count("started") == 2
    assert resumed[0]["step"] in {20, 40}
    assert of_kind(seen, "finished")[0]["step"] == 60
    assert max(losses(seen)) == 60
    assert [line["seq"] for line in seen] == sorted({line["seq"] for line in seen})


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
    process.wait(timeout=10)

    wait_until(lambda: not is_alive(worker), what="the end of the orphan", timeout_s=10)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that is dead and not yet reaped does not."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return state != "" and not state.startswith("Z")
