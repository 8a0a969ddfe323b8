"""Lambda function prepare-run: payload {run_id}."""

from lambdas.step import step_handler
from stationmaster.steps.prepare_run import prepare_run

handler = step_handler(prepare_run, "run_id")
