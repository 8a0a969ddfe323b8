"""Lambda function ensure-node-group: payload {cluster_id, node_group}."""

from lambdas.step import step_handler
from stationmaster.steps.ensure_node_group import ensure_node_group

handler = step_handler(ensure_node_group, "cluster_id", "node_group")
