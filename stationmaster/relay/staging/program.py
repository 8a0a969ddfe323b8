"""What the stager's programs have in common: progress lines, a last line and an exit code."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from stationmaster.domain.errors import PermanentError, StationmasterError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.full_disk import full_disk
from stationmaster.domain.ids import RunId
from stationmaster.domain.staged_data import StagedLine, StagingLine
from stationmaster.relay.job_output import ByteProgress, fail, print_line
from stationmaster.relay.staging.data import Report
from stationmaster.relay.staging.source import StagingRefused


def carry_out(work: Callable[[Report], StagedLine], *, run_id: RunId) -> int:
    """Do the work, and turn every ending into a last line and an exit code."""
    try:
        staged = work(_PrintedReport(run_id))
    except StagingRefused as error:
        return fail(str(error), EXIT_REFUSED)
    except PermanentError as error:
        return fail(str(error), EXIT_MISUNDERSTOOD)
    except (StationmasterError, OSError) as error:
        return fail(str(full_disk(error) or error), EXIT_NOT_DONE)
    print_line(staged.model_copy(update={"run_id": run_id, "at": datetime.now(UTC)}))
    return 0


class _PrintedReport:
    """Prints progress, for `relay.staging`."""

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
