"""Lambda function submit-job: payload {run_id}."""

from lambdas.step import step_handler
from stationmaster.steps.submit_job import submit_job

handler = step_handler(submit_job, "run_id")
