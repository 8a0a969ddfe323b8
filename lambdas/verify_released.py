"""Lambda function verify-released: payload {cluster_id}."""

from lambdas.step import step_handler
from stationmaster.steps.verify_released import verify_released

handler = step_handler(verify_released, "cluster_id")
