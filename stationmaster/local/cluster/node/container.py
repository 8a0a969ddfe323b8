"""One run of one container as a local process, under its supervisor.

Used by the pod worker. Knows processes and logs, nothing of Kubernetes objects.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stationmaster.local.cluster.logs import ContainerLog
from stationmaster.local.cluster.node.leftovers import end_leftovers
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
