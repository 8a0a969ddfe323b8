"""Lambda function conclude-cluster: payload {cluster_id}, with error after a failure."""

from lambdas.step import step_handler
from stationmaster.steps.conclude_cluster import conclude_cluster

handler = step_handler(conclude_cluster, "cluster_id", optional=("error",))
