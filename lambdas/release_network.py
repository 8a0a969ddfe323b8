"""Lambda function release-network: payload {cluster_id}."""

from lambdas.step import step_handler
from stationmaster.steps.release_network import release_network

handler = step_handler(release_network, "cluster_id")
