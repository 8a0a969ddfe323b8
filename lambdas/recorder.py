"""Lambda function recorder: relay batches and executions that crashed, as EventBridge events."""

from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from lambdas.step import guarded, services
from stationmaster.domain.bus import RELAY_BATCH_DETAIL_TYPE, RelayBatch
from stationmaster.steps.record_events import record_batch, record_dead_execution


def handler(event: dict[str, Any], context: LambdaContext) -> None:
    """Take in one EventBridge event."""
    if event["detail-type"] == RELAY_BATCH_DETAIL_TYPE:
        batch = RelayBatch.model_validate(event["detail"])
        guarded(
            lambda: record_batch(services(), batch),
            keys={"run_id": batch.run_id, "num_events": len(batch.events)},
        )
        return
    detail = event["detail"]
    guarded(
        lambda: record_dead_execution(
            services(),
            state_machine_arn=detail["stateMachineArn"],
            execution_name=detail["name"],
            status=detail["status"],
            cause=detail.get("cause") or "",
        ),
        keys={"execution": detail["name"], "status": detail["status"]},
    )
