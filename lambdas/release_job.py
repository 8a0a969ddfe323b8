"""Lambda function release-job: payload {run_id}."""

from lambdas.step import step_handler
from stationmaster.steps.release_job import release_job

handler = step_handler(release_job)
