"""Lambda function submit-job: payload {run_id}."""

from stationmaster.steps.submit_job import submit_job

from lambdas.step import step_handler

handler = step_handler(submit_job)
