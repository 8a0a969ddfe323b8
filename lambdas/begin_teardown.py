"""Lambda function begin-teardown: payload {cluster_id}."""

from lambdas.step import step_handler
from stationmaster.steps.begin_teardown import begin_teardown

handler = step_handler(begin_teardown, "cluster_id")
