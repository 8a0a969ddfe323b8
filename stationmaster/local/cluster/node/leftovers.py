"""Ends what a container leaves when its supervisor is killed and can end nothing itself.

Used by `container.py` at the end of each supervisor, before anybody hears of that end: a container
that is started again never runs beside its earlier self.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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
