"""Lambda function release-node-group: payload {cluster_id, node_group}."""

from lambdas.step import step_handler
from stationmaster.steps.release_node_group import release_node_group

handler = step_handler(release_node_group, "cluster_id", "node_group")
