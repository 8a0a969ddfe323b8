"""Lambda function run-check: payload {run_id, check}."""

from stationmaster.steps.run_check import run_check

from lambdas.step import step_handler

handler = step_handler(run_check, "check")
