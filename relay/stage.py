"""python -m relay.stage

Copies a data set of S3 to the file system of a run before it trains: a Job of the run's cluster
(`stationmaster.rendering.staging`), with the file system mounted. Credentials come from Pod
Identity. Standard output carries JSON lines of the kinds `staging` and, at the end, `staged`; where
it fails, the last line is one sentence. It may be killed and started again at any point.

Exit codes: 0 staged, 1 not staged but worth another try, 2 a bad setting, 3 refused: a right, the
data or room is missing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from relay.staging.config import StagingConfig
from relay.staging.copying import LARGE_AT_ONCE, PARTS_AT_ONCE, SMALL_AT_ONCE
from relay.staging.data import stage
from relay.staging.source import SourceBucket, StagingRefused
from stationmaster.domain.datasets import (
    EXIT_MISUNDERSTOOD,
    EXIT_NOT_STAGED,
    EXIT_REFUSED,
    StagedLine,
    StagingLine,
)
from stationmaster.domain.errors import PermanentError, StationmasterError
from stationmaster.domain.ids import RunId

REPORT_EVERY_S: Final = 5.0


def main(variables: Mapping[str, str]) -> int:
    """Stage, and turn every ending into a last line and an exit code."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    # It warns of each try that is repeated.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        config = StagingConfig.from_variables(variables)
    except PermanentError as error:
        return _fail(str(error), EXIT_MISUNDERSTOOD)
    run_id = config.order.run_id
    bucket = SourceBucket.connect(
        config.source,
        region=config.region,
        connections=max(PARTS_AT_ONCE + LARGE_AT_ONCE, SMALL_AT_ONCE),
    )
    try:
        staged = stage(config, bucket, report=_Report(run_id))
    except StagingRefused as error:
        return _fail(str(error), EXIT_REFUSED)
    except PermanentError as error:
        return _fail(str(error), EXIT_MISUNDERSTOOD)
    except (StationmasterError, OSError) as error:
        return _fail(str(error), EXIT_NOT_STAGED)
    _print(staged.model_copy(update={"run_id": run_id, "at": datetime.now(UTC)}))
    return 0


class _Report:
    """Prints a line every few seconds while bytes arrive."""

    def __init__(self, run_id: RunId) -> None:
        self._run_id = run_id
        self._lock = threading.Lock()
        self._total = self._copied = 0
        self._printed_at = time.monotonic()

    def expect(self, num_bytes: int) -> None:
        self._total = num_bytes
        self._say()

    def copied(self, num_bytes: int) -> None:
        with self._lock:
            self._copied += num_bytes
            if time.monotonic() - self._printed_at >= REPORT_EVERY_S:
                self._say()

    def _say(self) -> None:
        self._printed_at = time.monotonic()
        _print(
            StagingLine(
                run_id=self._run_id,
                at=datetime.now(UTC),
                staged_bytes=self._copied,
                total_bytes=self._total,
            )
        )


def _print(line: StagingLine | StagedLine) -> None:
    sys.stdout.write(line.text() + "\n")
    sys.stdout.flush()


def _fail(sentence: str, code: int) -> int:
    sys.stdout.write(" ".join(sentence.split()) + "\n")
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main(os.environ))
