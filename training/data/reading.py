"""Reading documents from storage that breaks off now and then.

Called by `pack` and `streaming`. A connection to the hub that fails is opened again at the row that
comes next, so nothing is read twice or left out; a file on this machine that fails once fails.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from stationmaster.domain.errors import PermanentError
from training.data.corpus import read_documents

# About two minutes: a hub that restarts is back, and longer would look like a hanging run.
_WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)

logger = logging.getLogger(__name__)


def read_patiently(
    file: str,
    *,
    start: int,
    remote: bool,
    read: Callable[..., Iterator[str]] = read_documents,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """The texts of a file's rows from `start` on, over as many connections as it takes.

    Args:
        file: as in `Corpus.files`.
        start: the first row.
        remote: try again when reading breaks off.
        read: opens the file at a row.
        wait: called with the seconds to wait before trying again.

    Raises:
        PermanentError: it broke off again and again at the same row.
        BadParameter: the file is not in the form that its name says.
    """
    row, failures = start, 0
    while True:
        try:
            for text in read(file, start=row):
                row, failures = row + 1, 0
                yield text
        except (OSError, EOFError, zlib.error) as exc:
            why = (str(exc).strip().splitlines() or [type(exc).__name__])[0][:200]
            if not remote or failures == len(_WAITS_S):
                tries = f" after {failures + 1} tries" if remote else ""
                raise PermanentError(
                    f"reading {file} broke off at row {row}{tries} ({why}); check the network and "
                    "the file, then start again to go on from the last checkpoint"
                ) from exc
            logger.warning("reading %s broke off at row %d, trying again: %s", file, row, why)
            wait(_WAITS_S[failures])
            failures += 1
        else:
            return
