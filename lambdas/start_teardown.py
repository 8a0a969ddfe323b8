"""The Lambda function start-teardown: a cluster that drains, as an EventBridge event."""

from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from lambdas.step import services
from stationmaster.invocations import guarded
from stationmaster.steps.start_teardown import start_teardown


def handler(event: dict[str, Any], context: LambdaContext) -> None:
    cluster_id = event["detail"]["cluster_id"]
    guarded(lambda: start_teardown(services(), cluster_id), keys={"cluster_id": cluster_id})
