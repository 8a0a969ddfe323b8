"""python -m stationmaster.relay.restore

Brings a checkpoint or a model of another run's result back to the file system of a run before it
trains: a Job of the run's cluster (`stationmaster.jobs.restore`), with the file system
mounted. Credentials come from Pod Identity. Standard output and exit codes are those of
`relay.stage`. It may be killed and started again at any point.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD
from stationmaster.relay.job_output import fail, start_logging
from stationmaster.relay.staging.config import RestoringConfig
from stationmaster.relay.staging.copying import CONNECTIONS
from stationmaster.relay.staging.program import carry_out
from stationmaster.relay.staging.restoring import restore
from stationmaster.relay.staging.source import OF_RESULTS, SourceBucket


def main(variables: Mapping[str, str]) -> int:
    """Restore, and turn every ending into a last line and an exit code."""
    start_logging()
    try:
        config = RestoringConfig.from_variables(variables)
    except PermanentError as error:
        return fail(str(error), EXIT_MISUNDERSTOOD)
    connect = partial(
        SourceBucket.connect, region=config.region, connections=CONNECTIONS, advice=OF_RESULTS
    )
    return carry_out(
        lambda report: restore(config, connect, report=report), run_id=config.order.run_id
    )


if __name__ == "__main__":
    sys.exit(main(os.environ))
