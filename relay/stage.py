"""python -m relay.stage

Copies a data set of S3 to the file system of a run before it trains: a Job of the run's cluster
(`stationmaster.rendering.staging`), with the file system mounted. Credentials come from Pod
Identity. Standard output carries JSON lines of the kinds `staging` and, at the end, `staged`; where
it fails, the last line is one sentence. It may be killed and started again at any point.

Exit codes: 0 staged, 1 not staged but worth another try, 2 a bad setting, 3 refused: a right, the
data or room is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from relay.job_output import ByteProgress, fail, print_line, start_logging
from relay.staging.config import StagingConfig
from relay.staging.copying import LARGE_AT_ONCE, PARTS_AT_ONCE, SMALL_AT_ONCE
from relay.staging.data import stage
from relay.staging.source import SourceBucket, StagingRefused
from stationmaster.domain.datasets import (
    EXIT_MISUNDERSTOOD,
    EXIT_NOT_STAGED,
    EXIT_REFUSED,
    StagingLine,
)
from stationmaster.domain.errors import PermanentError, StationmasterError
from stationmaster.domain.ids import RunId


def main(variables: Mapping[str, str]) -> int:
    """Stage, and turn every ending into a last line and an exit code."""
    start_logging()
    try:
        config = StagingConfig.from_variables(variables)
    except PermanentError as error:
        return fail(str(error), EXIT_MISUNDERSTOOD)
    run_id = config.order.run_id
    bucket = SourceBucket.connect(
        config.source,
        region=config.region,
        connections=max(PARTS_AT_ONCE + LARGE_AT_ONCE, SMALL_AT_ONCE),
    )
    try:
        staged = stage(config, bucket, report=_Report(run_id))
    except StagingRefused as error:
        return fail(str(error), EXIT_REFUSED)
    except PermanentError as error:
        return fail(str(error), EXIT_MISUNDERSTOOD)
    except (StationmasterError, OSError) as error:
        return fail(str(error), EXIT_NOT_STAGED)
    print_line(staged.model_copy(update={"run_id": run_id, "at": datetime.now(UTC)}))
    return 0


class _Report:
    """Hears of progress, for `relay.staging`."""

    def __init__(self, run_id: RunId) -> None:
        self._progress = ByteProgress(
            lambda done, total: StagingLine(
                run_id=run_id, at=datetime.now(UTC), staged_bytes=done, total_bytes=total
            )
        )

    def expect(self, num_bytes: int) -> None:
        self._progress.expect(num_bytes)
        self._progress.print_now()

    def copied(self, num_bytes: int) -> None:
        self._progress.add(num_bytes)


if __name__ == "__main__":
    sys.exit(main(os.environ))
