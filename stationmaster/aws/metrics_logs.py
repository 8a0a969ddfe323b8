"""The log group to which CloudWatch's agent writes a cluster's metrics, before they are metrics.

The agent would make it without the cluster's tag, and would keep every line for ever.
"""

from __future__ import annotations

from typing import Any, Final

from stationmaster.aws.calls import aws_call, ignoring_existing
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import metrics_log_group, tags
from stationmaster.settings import Settings

METRICS_LOG_ACTIONS: Final = ("logs:CreateLogGroup", "logs:PutRetentionPolicy", "logs:TagResource")
_DAYS: Final = 7


class MetricsLogs:
    """Creates log groups of clusters."""

    def __init__(self, settings: Settings, client: Any) -> None:
        self._deployment = settings.deployment
        self._client = client

    def ensure(self, cluster_id: ClusterId, *, run_id: RunId | None = None) -> None:
        """Create the group if it is missing; its lines expire after a week."""
        name = metrics_log_group(cluster_id)
        with ignoring_existing(f"creating log group {name}", "ResourceAlreadyExistsException"):
            self._client.create_log_group(
                logGroupName=name, tags=tags(cluster_id, run_id, deployment=self._deployment)
            )
        with aws_call(f"limiting how long log group {name} keeps lines"):
            self._client.put_retention_policy(logGroupName=name, retentionInDays=_DAYS)
