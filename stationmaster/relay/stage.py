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

from stationmaster.domain.staged_data import StagedLine
from stationmaster.relay.config import StagingConfig
from stationmaster.relay.job_output import StagingProgress, run_program
from stationmaster.relay.staging.copying import CONNECTIONS
from stationmaster.relay.staging.data import stage
from stationmaster.relay.staging.source import SourceBucket


def main(variables: Mapping[str, str]) -> int:
    """Stage, and return the exit code."""
    return run_program(StagingConfig, _stage, variables)


def _stage(config: StagingConfig) -> StagedLine:
    bucket = SourceBucket.connect(config.source, region=config.region, connections=CONNECTIONS)
    return stage(config, bucket, report=StagingProgress(config.order.run_id))


if __name__ == "__main__":
    sys.exit(main(os.environ))
