"""Lambda function start-teardown: the end of a run, as an EventBridge event."""

from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from lambdas.step import guarded, services
from stationmaster.steps.start_teardown import start_teardown


def handler(event: dict[str, Any], context: LambdaContext) -> None:
    """Start the teardown of the run that has ended."""
    run_id = event["detail"]["run_id"]
    guarded(lambda: start_teardown(services(), run_id), keys={"run_id": run_id})
