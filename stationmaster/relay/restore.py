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

from stationmaster.domain.staged_data import StagedLine
from stationmaster.relay.config import RestoringConfig
from stationmaster.relay.job_output import StagingProgress, run_program
from stationmaster.relay.staging.copying import CONNECTIONS
from stationmaster.relay.staging.restoring import restore
from stationmaster.relay.staging.source import OF_RESULTS, SourceBucket


def main(variables: Mapping[str, str]) -> int:
    """Restore, and return the exit code."""
    return run_program(RestoringConfig, _restore, variables)


def _restore(config: RestoringConfig) -> StagedLine:
    connect = partial(
        SourceBucket.connect, region=config.region, connections=CONNECTIONS, advice=OF_RESULTS
    )
    return restore(config, connect, report=StagingProgress(config.order.run_id))


if __name__ == "__main__":
    sys.exit(main(os.environ))
