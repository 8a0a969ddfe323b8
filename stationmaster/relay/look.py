"""python -m stationmaster.relay.look

Looks at data that is on the file system of a run already, before it trains: a Job of the run's
cluster (`jobs.look_over`), with the file system mounted and the user of the training pods. It
copies and changes nothing. The last line of standard output is a JSON line of the kind `staged`;
where the data cannot be trained on, it is one sentence.

Exit codes: 0 as the recipe needs it, 1 worth another try, 2 a bad setting, 3 refused: it is not
there, not readable, of another kind, or there is no room for checkpoints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from stationmaster.relay.config import LookingConfig
from stationmaster.relay.job_output import run_program
from stationmaster.relay.staging.looking import look


def main(variables: Mapping[str, str]) -> int:
    """Look, and return the exit code."""
    return run_program(LookingConfig, look, variables)


if __name__ == "__main__":
    sys.exit(main(os.environ))
