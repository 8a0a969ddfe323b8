"""Lambda function ensure-file-system: payload {cluster_id}."""

from lambdas.step import step_handler
from stationmaster.steps.ensure_file_system import ensure_file_system

handler = step_handler(ensure_file_system, "cluster_id")
