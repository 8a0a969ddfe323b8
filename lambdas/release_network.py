"""Lambda function release-network: payload {run_id}."""

from lambdas.step import step_handler
from stationmaster.steps.release_network import release_network

handler = step_handler(release_network)
