"""Lambda function ensure-job-started: payload {run_id}."""

from stationmaster.steps.ensure_job_started import ensure_job_started

from lambdas.step import step_handler

handler = step_handler(ensure_job_started)
