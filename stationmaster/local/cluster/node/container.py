"""One run of one container as a local process, under its supervisor.

Used by the pod worker. Knows processes and logs, nothing of Kubernetes objects. A supervisor that
is killed can end nothing itself: what it leaves is ended before anybody hears of its end, so a
container that is started again never runs beside its earlier self.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stationmaster.local.cluster.logs import ContainerLog
from stationmaster.local.cluster.node.supervisor import MARKER, NO_LOG

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


@dataclass(frozen=True)
class Command:
    """What to run: program and arguments, the whole environment, the directory."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path


class StartError(Exception):
    """The program cannot be started; the message says why."""


class LogError(Exception):
    """The container's log cannot be written; the message says why."""


class ContainerProcess:
    """A started container.

    `on_exit` is called once, from another thread, with the exit code, and with what made its
    supervisor end it, if something did.
    """

    def __init__(
        self, command: Command, log: ContainerLog, on_exit: Callable[[int, str], None]
    ) -> None:
        _check_program(command)
        self._log = log
        self._on_exit = on_exit
        self._marker = f"{MARKER}={uuid.uuid4().hex}"
        name, _, value = self._marker.partition("=")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), str(log.path), *command.argv],
            env={**command.env, name: value},
            cwd=command.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self._read_pid()
        threading.Thread(target=self._attend, name=f"container-{self.pid}", daemon=True).start()

    def terminate(self) -> None:
        """Ask the container's processes to end (SIGTERM)."""
        self._command(b"T")

    def kill(self) -> None:
        """End every process of the container now (SIGKILL)."""
        self._command(b"K")

    def _command(self, letter: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(letter)
        except (BrokenPipeError, ValueError):
            return  # it has ended already

    def _read_pid(self) -> int:
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._process.stdout.fileno(), 1)
            if not byte:
                break
            line += byte
        if line.strip().isdigit():
            return int(line)
        code = self._process.wait()
        self._close()
        said = line.decode(errors="replace").strip().removeprefix("!")
        if code == NO_LOG:
            raise LogError(said)
        raise StartError(said or f"the supervisor of {self._log.path} ended with code {code}")

    def _attend(self) -> None:
        assert self._process.stdout is not None
        said = b""
        while read := os.read(self._process.stdout.fileno(), 4096):
            # Dots, and behind a mark what went wrong.
            said += read if said else b"".join(read.partition(b"!")[1:])
            self._log.notify()
        end_leftovers(self._process.pid, self._marker)
        code = self._process.wait()
        self._close()
        self._log.end()
        reason = said[1:].decode(errors="replace").strip()
        self._on_exit(code if code >= 0 else 128 - code, reason)

    def _close(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdout.close()
        self._process.stdin.close()


def _check_program(command: Command) -> None:
    program = command.argv[0]
    if not command.cwd.is_dir():
        raise StartError(f'chdir to cwd ("{command.cwd}"): no such directory')
    if "/" in program:
        path = Path(command.cwd, program)
        if not path.exists():
            raise StartError(f'exec: "{program}": stat {program}: no such file or directory')
        if not os.access(path, os.X_OK):
            raise StartError(f'exec: "{program}": permission denied')
    elif shutil.which(program, path=command.env.get("PATH", os.defpath)) is None:
        raise StartError(f'exec: "{program}": executable file not found in $PATH')


# Ends a hang: a killed process goes, but a busy machine takes its time.
_DEADLINE_S = 600.0
_PAUSE_S = 0.005


def end_leftovers(supervisor: int, marker: str) -> None:
    """Wait for the supervisor's end; if it was killed, kill every process of its container.

    Those are the processes of its session, and those with `marker` (NAME=VALUE) in their
    environment, wherever they went. The supervisor is a child of this process and stays a zombie
    meanwhile, so nobody else can have its number, and no other session can.
    """
    if not _was_killed(supervisor):
        return
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        left = list(_leftovers(supervisor, marker))
        if not left:
            return
        for pid in left:
            _kill(pid, supervisor, marker)
        time.sleep(_PAUSE_S)


def _was_killed(pid: int) -> bool:
    if not hasattr(os, "waitid"):
        return True  # macOS before Python 3.13: look for leftovers at every end
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return end is None or end.si_code != os.CLD_EXITED


def _leftovers(session: int, marker: str) -> Iterator[int]:
    if sys.platform != "linux":
        listing = subprocess.run(
            ["/bin/ps", "-axww", "-E", "-o", "pid=,command="], capture_output=True, check=False
        ).stdout
        yield from (int(row.split()[0]) for row in listing.splitlines() if marker.encode() in row)
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and _belongs(int(name), session, marker):
            yield int(name)


def _belongs(pid: int, session: int, marker: str) -> bool:
    """Say whether the process, which lives, is of the container. Linux only."""
    directory = Path("/proc", str(pid))
    with contextlib.suppress(OSError, IndexError):
        # The command name, in parentheses, may contain spaces: read behind it.
        state, _parent, _group, its_session, *_ = (
            (directory / "stat").read_bytes().rpartition(b")")[2].split()
        )
        if pid == session or state in (b"Z", b"X"):
            return False
        if int(its_session) == session:
            return True
        return marker.encode() in (directory / "environ").read_bytes().split(b"\0")
    return False


def _kill(pid: int, session: int, marker: str) -> None:
    """Kill the process and no other one that gets its number meanwhile."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not hasattr(os, "pidfd_open"):
            os.kill(pid, signal.SIGKILL)
            return
        handle = os.pidfd_open(pid)
        try:
            if _belongs(pid, session, marker):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
