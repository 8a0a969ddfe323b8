"""Lambda function release-file-system: payload {cluster_id}."""

from lambdas.step import step_handler
from stationmaster.steps.release_file_system import release_file_system

handler = step_handler(release_file_system, "cluster_id")
