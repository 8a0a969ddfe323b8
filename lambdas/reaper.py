"""The Lambda function reaper: invoked on a schedule, takes no payload."""

from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from lambdas.step import services
from stationmaster.invocations import guarded, send_figures
from stationmaster.steps.parts.orphans import find_orphans
from stationmaster.steps.reap import Open, list_open, reap, take_census


def handler(event: dict[str, Any], context: LambdaContext) -> list[str]:
    """Help every run and cluster whose workflow or teardown crashed; returns their ids."""
    found: Open = guarded(lambda: list_open(services()), keys={"step": "list_open"})
    helped: list[str] = guarded(lambda: reap(services(), found), keys={"step": "reap"})
    orphans: list[str] = guarded(
        lambda: [each.sentence for each in find_orphans(services())],
        keys={"step": "find_orphans"},
    )
    guarded(
        lambda: _send_figures(found, num_helped=len(helped), num_orphans=len(orphans)),
        keys={"step": "count"},
    )
    return helped


def _send_figures(found: Open, *, num_helped: int, num_orphans: int) -> dict[str, float]:
    """Send figures of what was open when the reaper began."""
    ours = services()
    census = take_census(ours, found, num_helped=num_helped, num_orphans=num_orphans)
    figures: dict[str, float] = census.model_dump()
    send_figures(figures, deployment=ours.settings.deployment)
    return figures
