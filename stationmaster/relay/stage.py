"""python -m stationmaster.relay.stage

Copies a data set of S3 to the file system of a run before it trains: a Job of the run's cluster
(`stationmaster.jobs.stage`), with the file system mounted. Credentials come from Pod
Identity. Standard output carries JSON lines of the kinds `staging` and, at the end, `staged`; where
it fails, the last line is one sentence. It may be killed and started again at any point.

Exit codes: 0 staged, 1 not staged but worth another try, 2 a bad setting, 3 refused: a right, the
data or room is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD
from stationmaster.relay.job_output import fail, start_logging
from stationmaster.relay.staging.config import StagingConfig
from stationmaster.relay.staging.copying import CONNECTIONS
from stationmaster.relay.staging.data import stage
from stationmaster.relay.staging.program import carry_out
from stationmaster.relay.staging.source import SourceBucket


def main(variables: Mapping[str, str]) -> int:
    """Stage, and turn every ending into a last line and an exit code."""
    start_logging()
    try:
        config = StagingConfig.from_variables(variables)
    except PermanentError as error:
        return fail(str(error), EXIT_MISUNDERSTOOD)
    bucket = SourceBucket.connect(config.source, region=config.region, connections=CONNECTIONS)
    return carry_out(
        lambda report: stage(config, bucket, report=report), run_id=config.order.run_id
    )


if __name__ == "__main__":
    sys.exit(main(os.environ))
