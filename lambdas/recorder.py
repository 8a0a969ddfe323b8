"""The Lambda function recorder: relay batches and crashed executions, as EventBridge events."""

from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from lambdas.step import services
from stationmaster.domain.census import Measure
from stationmaster.invocations import guarded, send_figures
from stationmaster.steps.take_in import sent_by_relay_at, take_in


def handler(event: Any, context: LambdaContext) -> dict[str, int]:
    """Take in one EventBridge event; returns how many parts of it became dead letters."""
    answer: dict[str, int] = guarded(lambda: _take_in(event), keys=_keys(event))
    return answer


def _take_in(event: Any) -> dict[str, int]:
    ours = services()
    answer = take_in(ours, event)
    if (sent_at := sent_by_relay_at(event)) is not None:
        lag_s = max(0.0, (ours.now() - sent_at).total_seconds())
        send_figures({Measure.EVENT_LAG: lag_s}, deployment=ours.settings.deployment)
    return answer


def _keys(event: Any) -> dict[str, Any]:
    """Return what log lines say of an event that may be of any shape."""
    detail = event.get("detail") if isinstance(event, dict) else None
    names = {"run_id": "run_id", "batch_id": "batch_id", "name": "execution", "status": "status"}
    found = detail if isinstance(detail, dict) else {}
    return {named: found[name] for name, named in names.items() if name in found}
