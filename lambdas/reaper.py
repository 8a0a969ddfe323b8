"""Lambda function reaper: invoked on a schedule, takes no payload."""

from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from lambdas.step import guarded, services
from stationmaster.steps.reap import reap


def handler(event: dict[str, Any], context: LambdaContext) -> list[str]:
    """Help every run and cluster whose workflow or teardown crashed; answers their ids."""
    helped: list[str] = guarded(lambda: reap(services()), keys={"step": "reap"})
    return helped
