"""Lambda function release-lease: payload {run_id}."""

from lambdas.step import step_handler
from stationmaster.steps.release_lease import release_lease

handler = step_handler(release_lease, "run_id")
