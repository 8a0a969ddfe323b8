"""Lambda function run-check: payload {cluster_id, check}."""

from lambdas.step import step_handler
from stationmaster.steps.run_check import run_check

handler = step_handler(run_check, "cluster_id", "check")
