"""Lambda function conclude-teardown: payload {cluster_id}, with error after a failure."""

from lambdas.step import step_handler
from stationmaster.steps.conclude_teardown import conclude_teardown

handler = step_handler(conclude_teardown, "cluster_id", optional=("error",))
