"""Lambda function ensure-cluster: payload {cluster_id}."""

from lambdas.step import step_handler
from stationmaster.steps.ensure_cluster import ensure_cluster

handler = step_handler(ensure_cluster, "cluster_id")
