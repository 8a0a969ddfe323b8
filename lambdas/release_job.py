"""Lambda function release-job: payload {run_id}."""

from stationmaster.steps.release_job import release_job

from lambdas.step import step_handler

handler = step_handler(release_job)
