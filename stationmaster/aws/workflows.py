"""Step Functions: starting the three workflows and resolving their waits.

Executions are named after run or cluster and their number, so starting one twice is harmless.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from stationmaster.aws.calls import Adapter, AwsConflict, AwsNotFound, AwsTokenUnused, aws_call
from stationmaster.domain.ids import ClusterId, RunId

if TYPE_CHECKING:
    from mypy_boto3_stepfunctions import SFNClient

# Cause strings are limited to 32,768 characters.
_MAX_CAUSE = 4_000


def pass_name(cluster_id: ClusterId, number: int) -> str:
    """Name an execution of the cluster workflow; the first is called as the cluster is."""
    return cluster_id if number == 1 else f"{cluster_id}-{number}"


def teardown_name(cluster_id: ClusterId, attempt: int) -> str:
    """Name the execution of one attempt at a cluster's teardown."""
    return f"{cluster_id}-teardown-{attempt}"


def train_name(run_id: RunId, number: int) -> str:
    """Name the n-th execution of a run's workflow; each after the first saves its results."""
    return run_id if number == 1 else f"{run_id}-{number}"


class Workflows(Adapter):
    """The cluster, the train and the teardown state machine."""

    _client: SFNClient

    def start_train(self, run_id: RunId, number: int = 1) -> None:
        """Start the n-th execution of the run's workflow, unless it was started before."""
        name = train_name(run_id, number)
        self._start(self._settings.train_state_machine_arn, name, {"run_id": run_id})

    def start_cluster(self, cluster_id: ClusterId, *, pass_number: int = 1) -> None:
        """Start an execution of the cluster's workflow, unless it was started before."""
        payload: dict[str, str | int] = {"cluster_id": cluster_id, "pass_number": pass_number}
        name = pass_name(cluster_id, pass_number)
        self._start(self._settings.cluster_state_machine_arn, name, payload)

    def start_teardown(self, cluster_id: ClusterId, *, attempt: int) -> None:
        """Start the cluster's teardown; each attempt has its own execution."""
        name, payload = teardown_name(cluster_id, attempt), {"cluster_id": cluster_id}
        self._start(self._settings.teardown_state_machine_arn, name, payload)

    def train_status(self, run_id: RunId, number: int = 1) -> str | None:
        """Return the status of the n-th execution, e.g. RUNNING, or None if it was
        never started.
        """
        return self._status(self._settings.train_state_machine_arn, train_name(run_id, number))

    def cluster_status(self, cluster_id: ClusterId, *, pass_number: int = 1) -> str | None:
        """Return the status of an execution of the cluster's workflow, or None for none."""
        name = pass_name(cluster_id, pass_number)
        return self._status(self._settings.cluster_state_machine_arn, name)

    def teardown_status(self, cluster_id: ClusterId, *, attempt: int) -> str | None:
        """Return the status of one attempt's teardown workflow, or None for none."""
        name = teardown_name(cluster_id, attempt)
        return self._status(self._settings.teardown_state_machine_arn, name)

    def wait_succeeded(self, token: str) -> None:
        """Let the workflow continue: what it waits for is there."""
        self._resolve(lambda: self._client.send_task_success(taskToken=token, output="{}"))

    def wait_failed(self, token: str, *, error: str, cause: str) -> None:
        """End the workflow's wait with an error, by the name of a class in domain.errors."""
        self._resolve(
            lambda: self._client.send_task_failure(
                taskToken=token, error=error, cause=cause[:_MAX_CAUSE]
            )
        )

    def heartbeat(self, token: str) -> None:
        """Report that the job is still being watched, so that the wait does not time out."""
        self._resolve(lambda: self._client.send_task_heartbeat(taskToken=token))

    def _start(self, state_machine_arn: str, name: str, payload: Mapping[str, str | int]) -> None:
        try:
            with aws_call(f"starting workflow {name}"):
                self._client.start_execution(
                    stateMachineArn=state_machine_arn,
                    name=name,
                    input=json.dumps(payload),
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
            with aws_call("resolving the wait of a workflow"):
                send()
        except (AwsNotFound, AwsTokenUnused):
            return
