"""Lambda function await-job: payload {run_id, task_token}."""

from lambdas.step import step_handler
from stationmaster.steps.await_job import await_job

handler = step_handler(await_job, "run_id", "task_token")
