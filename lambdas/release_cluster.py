"""Lambda function release-cluster: payload {cluster_id}."""

from lambdas.step import step_handler
from stationmaster.steps.release_cluster import release_cluster

handler = step_handler(release_cluster, "cluster_id")
