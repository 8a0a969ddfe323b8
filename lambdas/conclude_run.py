"""Lambda function conclude-run: payload {run_id}, with error after a failure."""

from lambdas.step import step_handler
from stationmaster.steps.conclude_run import conclude_run

handler = step_handler(conclude_run, "run_id", optional=("error",))
