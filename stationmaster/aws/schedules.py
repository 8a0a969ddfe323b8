"""EventBridge Scheduler: the clock of each kept cluster, a schedule that fires once."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from stationmaster.aws.calls import Adapter, AwsConflict, AwsNotFound, aws_call
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import ClusterId

# What setting and deleting a clock takes, on the schedules of one group. Schedules carry no tags.
CLOCK_ACTIONS: Final = (
    "scheduler:CreateSchedule",
    "scheduler:UpdateSchedule",
    "scheduler:DeleteSchedule",
)
_SECOND: Final = timedelta(seconds=1)
# The reaper comes by four times an hour, and looks at every clock that is late.
_RETRIES: Final = {"MaximumEventAgeInSeconds": 900, "MaximumRetryAttempts": 10}


class Schedules(Adapter):
    """One one-time schedule for each cluster, named after it, in the deployment's group."""

    def put(self, cluster_id: ClusterId, *, at: datetime) -> None:
        """Set the cluster's clock to a time in the future, in place of the earlier one.

        The service fires within the minute of that time, and then deletes the schedule.

        Raises:
            PermanentError: the deployment has no group of schedules.
        """
        schedule = self._schedule(cluster_id, at)
        what = f"setting the clock of cluster {cluster_id}"
        try:
            with aws_call(what):
                self._client.update_schedule(**schedule)
        except AwsNotFound:
            self._create(schedule, what)

    def delete(self, cluster_id: ClusterId) -> None:
        """Stop the cluster's clock; one that has rung is gone already."""
        with suppress(AwsNotFound), aws_call(f"stopping the clock of cluster {cluster_id}"):
            self._client.delete_schedule(Name=cluster_id, GroupName=self._settings.schedule_group)

    def _create(self, schedule: Any, what: str) -> None:
        """Create the schedule, unless another writer does so in this moment: it sets its own."""
        try:
            with suppress(AwsConflict), aws_call(what, "ConflictException"):
                self._client.create_schedule(**schedule)
        except AwsNotFound as exc:
            raise PermanentError(str(exc)) from exc

    def _schedule(self, cluster_id: ClusterId, at: datetime) -> Any:
        # Whole seconds: never before the time itself.
        whole = at.astimezone(UTC) + (_SECOND if at.microsecond else timedelta())
        return {
            "Name": cluster_id,
            "GroupName": self._settings.schedule_group,
            "ScheduleExpression": f"at({whole:%Y-%m-%dT%H:%M:%S})",
            "ScheduleExpressionTimezone": "UTC",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "ActionAfterCompletion": "DELETE",
            "Target": {
                "Arn": self._settings.keep_clock_function_arn,
                "RoleArn": self._settings.scheduler_role_arn,
                "Input": json.dumps({"cluster_id": cluster_id}),
                "RetryPolicy": _RETRIES,
            },
        }
