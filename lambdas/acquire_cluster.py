"""Lambda function acquire-cluster: payload {run_id, task_token}."""

from lambdas.step import step_handler
from stationmaster.steps.acquire_cluster import acquire_cluster

handler = step_handler(acquire_cluster, "run_id", "task_token")
