"""Lambda function release-run: payload {run_id}."""

from lambdas.step import step_handler
from stationmaster.steps.release_run import release_run

handler = step_handler(release_run)
