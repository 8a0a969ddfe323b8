"""Where handlers that run in this process log: a file of the local mode that runs now.

Their loggers keep the stream that they find when they are imported, which is once a process; local
modes of one process follow each other. So the stream stays, and its file changes.
"""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from typing import Final


class HandlerLog(io.TextIOBase):
    """A text stream whose file can be exchanged."""

    path: Path | None = None

    def write(self, text: str) -> int:
        """Append to the current file; without one, or room for it, the text is dropped."""
        if self.path is not None and self.path.parent.is_dir():
            with suppress(OSError), self.path.open("a") as log:
                log.write(text)
        return len(text)


HANDLER_LOG: Final = HandlerLog()
