"""Living under an elastic agent: ending when asked, or orphaned, and not waiting for the dead.

It must not import torch: it is in force before torch is loaded. A worker whose failure only its
user can fix sends SIGTERM to its torchrun, which has no exit code for "a restart would not help".
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

EXIT_PEER_LOST: Final = 75  # EX_TEMPFAIL of sysexits.h: the same command may succeed next time
EXIT_STOPPED: Final = 128 + signal.SIGTERM
_PARENT_POLL_S: Final = 0.5
# Agents look for joining nodes every 0.1 s; a loaded one may need much longer.
_OWN_SIGTERM_S: Final = 5.0
# Local rank 0 meets the same wrong key at the same time, but for a loaded machine.
_RANK_0_REPORTS_S: Final = 15.0
# Leaving a process group takes milliseconds, unless a peer or a native thread hangs.
_LEAVING_S: Final = 30.0

logger = logging.getLogger(__name__)


def exit_with_parent(before: Callable[[], object] = lambda: None) -> None:
    """End this process soon after its agent is gone, and call `before` then.

    torchrun starts workers in sessions of their own, so killing the agent leaves them training, and
    writing checkpoints, beside their successors. A daemon thread polls: portable, 2 wake-ups a
    second.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        logger.error("the elastic agent is gone; this worker ends")
        before()
        exit_now(EXIT_PEER_LOST)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()


def stop_on_sigterm(*, deadline_s: float) -> threading.Event:
    """Turn SIGTERM into an event that the trainer looks at; past the deadline the process ends.

    The trainer finishes the step in progress and saves. What it cannot save in time is lost, rather
    than the process being killed while it writes the next thing.
    """
    stop = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            return
        stop.set()
        deadline = threading.Timer(deadline_s, exit_now, [EXIT_STOPPED])
        deadline.daemon = True
        deadline.start()

    signal.signal(signal.SIGTERM, handle)
    return stop


def wait_for_own_sigterm(stop: threading.Event) -> None:
    """Let a worker that stops with the others get its own SIGTERM before it ends.

    When nodes join or leave, every agent stops its worker with SIGTERM, some milliseconds apart,
    and the workers agree on a last step. One that ended before its agent looks would count as a
    crash and use up one of the agent's restarts.
    """
    stop.wait(_OWN_SIGTERM_S)


def restarts_left(environ: Mapping[str, str]) -> int:
    """Return how often the agent of this worker would start it again; 0 without an agent."""
    allowed = int(environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    return max(0, allowed - int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")))


def end_agent(environ: Mapping[str, str]) -> bool:
    """End the torchrun that started this process, before it starts it again in vain.

    torchrun counts failures and asks for no reason; the one way to keep it from using up its
    restarts is SIGTERM to itself. It ends with exit code 1, as after the last restart. Returns
    whether there was one.

    The agent ends all its workers, so the first of them goes first: it may be rank 0, which reports
    the reason. The others end with it, or do it themselves when it has not failed.
    """
    parent = os.getppid()
    if "TORCHELASTIC_RUN_ID" not in environ or not _is_torchrun(parent):
        return False
    if environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(_RANK_0_REPORTS_S)
    logger.info("starting again would not help: ending the elastic agent")
    try:
        os.kill(parent, signal.SIGTERM)
    except ProcessLookupError:
        return False  # another worker of it was faster
    return True


def _is_torchrun(pid: int) -> bool:
    """Say whether a process is torchrun: a shell between it and the trainer must not be killed."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"torchrun" in command or b"torch.distributed.run" in command


def leave_in_time(code: int) -> threading.Timer:
    """End the process in time once all is saved: leaving the other ranks may hang.

    Cancel what is returned once they are left.
    """
    overdue = threading.Timer(_LEAVING_S, exit_now, [code])
    overdue.daemon = True
    overdue.start()
    return overdue


def exit_now(code: int) -> NoReturn:
    """End without Python's shutdown, which would wait for threads that wait for a lost peer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
