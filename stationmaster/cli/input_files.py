"""Opens what a command is given to read: files, what is piped in, and `<(kubectl logs POD)`.

Used by `cli/diagnose.py`, `cli/lint.py` and `cli/nccl_report.py`.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from stationmaster.domain.errors import BadCommand

STDIN: Final = "-"
# Nobody may ever write into a named pipe; a command that was started for it soon does.
_PIPE_S: Final = 10


@contextmanager
def opened(name: str, *, advice: str) -> Iterator[BinaryIO]:
    """Open a file to read, or with "-" what is piped in; `advice` says what to give instead.

    Raises:
        BadCommand: it cannot be opened, or not be read while it is open.
    """
    if name == STDIN:
        yield sys.stdin.buffer
        return
    try:
        with open(name, "rb", opener=_open) as file:
            yield file
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise BadCommand(f'"{name}" cannot be read: {reason.lower()}; {advice}') from exc


def _open(name: str, flags: int) -> int:
    """Return the descriptor of a file to read.

    Raises:
        OSError: it cannot be opened, or is a pipe into which nobody writes.
        ValueError: no file has such a name.
    """
    descriptor = os.open(name, flags | os.O_NONBLOCK)
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            _wait_for_writer(descriptor)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait_for_writer(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(_PIPE_S * 1000):
        raise OSError(0, f"nothing was written into this pipe in {_PIPE_S} s")
