"""Containers and their supervisors: kills, full disks, programs that cannot start."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stationmaster.local.cluster.logs import ContainerLog
from stationmaster.local.cluster.node.container import (
    Command,
    ContainerProcess,
    LogError,
)
from stationmaster.local.cluster.node.supervisor import MARKER
from tests.support.cluster_fixtures import REPOSITORY, Cluster, alive, eventually, start_cluster

SUPERVISOR = REPOSITORY / "stationmaster" / "local" / "cluster" / "node" / "supervisor.py"


# Fills the log of its own supervisor, which may write 64 bytes more and no byte after them.
FILL = """
import os, resource
resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (64, -1))
while True:
    print("much", flush=True)
"""


def supervised(log: Path, *argv: str, patience_s: float = 5.0) -> subprocess.Popen[str]:
    """A supervisor alone, with a patience of its own with a full log."""
    program = (
        "import sys; path = sys.argv.pop(1); names = {'__name__': 'supervisor'};"
        "exec(compile(open(path).read(), path, 'exec'), names);"
        f"names['_ROOM_PATIENCE_S'] = {patience_s}; sys.exit(names['main']())"
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program, str(SUPERVISOR), str(log), *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {MARKER: "trial"},
    )


def spoken(supervisor: subprocess.Popen[str]) -> str:
    """All that it says until its end; its input stays open, as it would end without a parent."""
    assert supervisor.stdout is not None
    said = supervisor.stdout.read()
    supervisor.wait()
    return said


_LOGGED_PIDS = """
import os, subprocess
child = subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=subprocess.DEVNULL)
print(os.getppid(), os.getpid(), child.pid, flush=True)
child.wait()
"""


def test_kill_9_of_the_supervisor_ends_its_processes_before_the_restart(cluster: Cluster) -> None:
    container = {"command": ["python", "-c", _LOGGED_PIDS]}
    cluster.run_pod("unguarded", "", container=container, restartPolicy="OnFailure")
    cluster.pod_phase("unguarded", "Running")
    logged = eventually(lambda: cluster.log("unguarded"), "the process ids")
    supervisor, program, child = map(int, logged.split())

    os.kill(supervisor, signal.SIGKILL)

    def runs_again() -> bool:
        status = cluster.pod("unguarded").status.container_statuses[0]
        return bool(status.restart_count == 1 and status.state.running)

    eventually(runs_again, "a restart")
    assert cluster.log("unguarded", previous=True) == logged
    assert not alive(program)
    assert not alive(child)
    cluster.core.delete_namespaced_pod("unguarded", "default", grace_period_seconds=0)


def test_stop_gives_up_on_a_process_that_cannot_be_ended_and_names_it(tmp_path: Path) -> None:
    own = start_cluster(tmp_path / "state")
    own.add_nodes()
    own.run_pod("stuck", "", container={"command": ["python", "-c", _LOGGED_PIDS]})
    own.pod_phase("stuck", "Running")
    logged = eventually(lambda: own.log("stuck"), "the process ids")
    supervisor, program, _ = map(int, logged.split())
    own.api.close()
    os.kill(supervisor, signal.SIGSTOP)  # it can end nothing

    try:
        left = own.local.stop(grace_s=0.1, patience_s=0.1)
    finally:
        os.kill(supervisor, signal.SIGKILL)
        eventually(lambda: not alive(program), "the program's end")

    assert left == [f"process {program} of pod stuck"]


@pytest.mark.skipif(sys.platform != "linux", reason="a program dies with its parent on Linux only")
def test_program_dies_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path / "log", "sleep", "300") as supervisor:
        assert supervisor.stdout is not None
        program = int(supervisor.stdout.readline())

        supervisor.kill()
        supervisor.wait()

        eventually(lambda: not alive(program), "the program's end")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_log_that_is_full_for_a_while_loses_nothing(tmp_path: Path) -> None:
    log, much, enough = tmp_path / "log", tmp_path / "much", tmp_path / "enough"
    script = (
        f"echo first; until [ -e {much} ]; do sleep 0.05; done; seq 1000; "
        f"until [ -e {enough} ]; do sleep 0.05; done"
    )
    with supervised(log, "sh", "-c", script, patience_s=600) as supervisor:
        eventually(lambda: log.exists() and log.read_text(), "the first line")
        before = resource.prlimit(supervisor.pid, resource.RLIMIT_FSIZE, (200, -1))
        much.touch()
        eventually(lambda: log.stat().st_size == 200, "a full log")
        resource.prlimit(supervisor.pid, resource.RLIMIT_FSIZE, before)
        eventually(lambda: " 1000\n" in log.read_text(), "the last line")
        enough.touch()
        said = spoken(supervisor)

    words = [line.split(" ")[1] for line in log.read_text().splitlines()]
    assert words == ["first", *map(str, range(1, 1001))]
    assert (supervisor.returncode, "!" in said) == (0, False)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_pod_whose_log_stays_full_fails_with_what_to_do(cluster: Cluster) -> None:
    cluster.run_pod("noisy", "", container={"command": ["python", "-c", FILL]})

    (status,) = cluster.pod_phase("noisy", "Failed").status.container_statuses
    ended = status.state.terminated
    assert (ended.exit_code, ended.reason) == (137, "LogNotWritten")
    assert re.fullmatch(
        rf"\S+/main\.0\.log: file too large; free space in {cluster.state_dir}", ended.message
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_container_whose_log_has_no_room_is_not_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = Command(["touch", str(started)], os.environ, tmp_path)

    with pytest.raises(LogError, match="/dev/full: no space left on device"):
        ContainerProcess(command, ContainerLog(Path("/dev/full")), print)

    assert not started.exists()
