"""Step Functions: starting the two workflows and resolving the wait for the job.

Executions are named after the run (and the teardown's attempt), so starting one twice is harmless.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from stationmaster.aws.calls import AwsConflict, AwsNotFound, AwsTokenUnused, aws_call
from stationmaster.domain.ids import RunId
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_stepfunctions import SFNClient

# Cause strings are limited to 32,768 characters.
_MAX_CAUSE = 4_000


class Workflows:
    """The train and the teardown state machine."""

    def __init__(self, settings: Settings, client: SFNClient) -> None:
        self._settings = settings
        self._client = client

    def start_train(self, run_id: RunId) -> None:
        """Start the run's workflow, unless it was started before."""
        self._start(self._settings.train_state_machine_arn, run_id, run_id)

    def start_teardown(self, run_id: RunId, *, attempt: int) -> None:
        """Start the run's teardown; each attempt has its own execution."""
        self._start(
            self._settings.teardown_state_machine_arn, f"{run_id}-teardown-{attempt}", run_id
        )

    def train_status(self, run_id: RunId) -> str | None:
        """Status of the run's workflow, e.g. RUNNING, or None when it was never started."""
        return self._status(self._settings.train_state_machine_arn, run_id)

    def teardown_status(self, run_id: RunId, *, attempt: int) -> str | None:
        """Status of one attempt's teardown workflow, or None when it was never started."""
        return self._status(
            self._settings.teardown_state_machine_arn, f"{run_id}-teardown-{attempt}"
        )

    def job_succeeded(self, token: str) -> None:
        """Let the workflow go on: the job has succeeded."""
        self._resolve(
            lambda: self._client.send_task_success(
                taskToken=token, output=json.dumps({"job": "succeeded"})
            )
        )

    def job_failed(self, token: str, *, error: str, cause: str) -> None:
        """End the workflow's wait with an error, by the name of a class in domain.errors."""
        self._resolve(
            lambda: self._client.send_task_failure(
                taskToken=token, error=error, cause=cause[:_MAX_CAUSE]
            )
        )

    def heartbeat(self, token: str) -> None:
        """Say that the job is still being watched, so that the wait does not time out."""
        self._resolve(lambda: self._client.send_task_heartbeat(taskToken=token))

    def _start(self, state_machine_arn: str, name: str, run_id: RunId) -> None:
        try:
            with aws_call(f"starting workflow {name}"):
                self._client.start_execution(
                    stateMachineArn=state_machine_arn,
                    name=name,
                    input=json.dumps({"run_id": run_id}),
                )
        except AwsConflict:
            return  # started by an earlier delivery of the same request

    def _status(self, state_machine_arn: str, name: str) -> str | None:
        arn = state_machine_arn.replace(":stateMachine:", ":execution:") + f":{name}"
        try:
            with aws_call(f"looking at workflow {name}"):
                return self._client.describe_execution(executionArn=arn)["status"]
        except AwsNotFound:
            return None

    @staticmethod
    def _resolve(send: Callable[[], object]) -> None:
        """Call `send`; a token that nobody waits for any more is no error."""
        try:
            with aws_call("resolving the wait for the job"):
                send()
        except (AwsNotFound, AwsTokenUnused):
            return
