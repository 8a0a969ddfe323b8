"""Lambda function ensure-job-started: payload {run_id}."""

from lambdas.step import step_handler
from stationmaster.steps.ensure_job_started import ensure_job_started

handler = step_handler(ensure_job_started, "run_id")
