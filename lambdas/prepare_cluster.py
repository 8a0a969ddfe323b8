"""Lambda function prepare-cluster: payload {cluster_id}."""

from lambdas.step import step_handler
from stationmaster.steps.prepare_cluster import prepare_cluster

handler = step_handler(prepare_cluster, "cluster_id")
