"""The output of the relay image's Jobs: JSON lines while they work, one sentence on failure."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from stationmaster.domain.progress_lines import PrintedLine

REPORT_EVERY_S: Final = 5.0


def start_logging() -> None:
    """Log warnings, on standard error."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    # It warns of each try that is repeated.
    logging.getLogger("urllib3").setLevel(logging.ERROR)


def print_line(line: PrintedLine) -> None:
    """Print a line at once."""
    sys.stdout.write(line.text() + "\n")
    sys.stdout.flush()


def fail(sentence: str, code: int) -> int:
    """Print the sentence as the last line, and return the exit code."""
    sys.stdout.write(" ".join(sentence.split()) + "\n")
    sys.stdout.flush()
    return code


class ByteProgress:
    """Prints a line every few seconds while bytes are done. Threads may share it."""

    def __init__(
        self, line: Callable[[int, int], PrintedLine], *, every_s: float = REPORT_EVERY_S
    ) -> None:
        """`line` makes what is printed of the bytes done, and of all bytes."""
        self._line = line
        self._every_s = every_s
        self._lock = threading.Lock()
        self._total = self._done = 0
        self._printed_at = time.monotonic()

    def expect(self, num_bytes: int) -> None:
        """Expect so many more bytes."""
        with self._lock:
            self._total += num_bytes

    def add(self, num_bytes: int) -> None:
        """Note that so many more of them are done."""
        with self._lock:
            self._done += num_bytes
            if time.monotonic() - self._printed_at < self._every_s:
                return
            self._printed_at = time.monotonic()
            print_line(self._line(self._done, self._total))

    def print_now(self) -> None:
        """Print a line whatever the time."""
        with self._lock:
            self._printed_at = time.monotonic()
            print_line(self._line(self._done, self._total))
