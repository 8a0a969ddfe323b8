"""What the programs of the relay image's Jobs have in common: settings, lines, the last of them.

They print JSON lines while they work, and one sentence where they fail.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

from stationmaster.domain.errors import PermanentError, StationmasterError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.full_disk import full_disk
from stationmaster.domain.ids import RunId
from stationmaster.domain.progress_lines import PrintedLine
from stationmaster.domain.staged_data import StagingLine
from stationmaster.relay.config import Config
from stationmaster.relay.s3 import Refused

REPORT_EVERY_S: Final = 5.0
_ConfigT = TypeVar("_ConfigT", bound=Config)


def run_program(
    kind: type[_ConfigT], work: Callable[[_ConfigT], PrintedLine], variables: Mapping[str, str]
) -> int:
    """Read the settings, do the work, and turn every ending into a last line and an exit code."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    # It warns of each try that is repeated.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        last = work(kind.from_variables(variables))
        _print(last.model_copy(update={"at": datetime.now(UTC)}).text())
    except Refused as error:
        return _fail(error, EXIT_REFUSED)
    except PermanentError as error:
        return _fail(error, EXIT_MISUNDERSTOOD)
    except (StationmasterError, OSError) as error:
        return _fail(full_disk(error) or error, EXIT_NOT_DONE)
    return 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _fail(error: Exception, code: int) -> int:
    _print(" ".join(str(error).split()))
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
            if time.monotonic() - self._printed_at >= self._every_s:
                self.print_now()

    def print_now(self) -> None:
        """Print a line whatever the time."""
        self._printed_at = time.monotonic()
        _print(self._line(self._done, self._total).text())


class StagingProgress(ByteProgress):
    """Prints how far a program is that brings data: first that it begins."""

    def __init__(self, run_id: RunId) -> None:
        super().__init__(
            lambda done, total: StagingLine(
                run_id=run_id, at=datetime.now(UTC), staged_bytes=done, total_bytes=total
            )
        )

    def expect(self, num_bytes: int) -> None:
        super().expect(num_bytes)
        self.print_now()
