"""Opens what a command is given to read: files, and pipes such as `<(kubectl logs POD)`.

Used by `cli/diagnose.py`, `cli/lint.py` and `cli/nccl_report.py`.
"""

from __future__ import annotations

import os
import select
import stat
from typing import Final

# Nobody may ever write into a named pipe; a command that was started for it soon does.
_PIPE_S: Final = 10


def open_input(name: str, flags: int) -> int:
    """The descriptor of a file to read; pass it to open() as its `opener`.

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
