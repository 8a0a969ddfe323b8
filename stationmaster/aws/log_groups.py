"""CloudWatch log groups of clusters: AWS deletes none of them with its cluster.

The product makes one for the metrics of GPUs, and deletes it with the cluster; the metrics stay in
CloudWatch. Source: CloudWatch Logs API reference, DeleteLogGroup.
"""

from __future__ import annotations

from typing import Final

from stationmaster.aws.calls import (
    Adapter,
    aws_call,
    ignoring_existing,
    ignoring_gone_or_busy,
    listed,
)
from stationmaster.aws.kinds import Actions
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import metrics_log_group, tags
from stationmaster.domain.resources import Left, ResourceKind

ACTIONS: Final = Actions(
    permission="network",
    resource="logs:log-group",
    read=("logs:DescribeLogGroups",),
    delete=("logs:DeleteLogGroup",),
)
METRICS_LOG_ACTIONS: Final = ("logs:CreateLogGroup", "logs:PutRetentionPolicy", "logs:TagResource")
_DAYS: Final = 7
# Two calls change the same group at once; the next look tries again.
_BUSY: Final = "OperationAbortedException"


class MetricsLogs(Adapter):
    """Makes the group to which CloudWatch's agent writes metrics, before they are metrics.

    The agent would make it without the cluster's tag, and would keep every line for ever.
    """

    def ensure(self, cluster_id: ClusterId, *, run_id: RunId | None = None) -> None:
        """Create the group for metrics if it is missing; its lines expire after a week."""
        name = metrics_log_group(cluster_id)
        with ignoring_existing(f"creating log group {name}", "ResourceAlreadyExistsException"):
            self._client.create_log_group(
                logGroupName=name,
                tags=tags(cluster_id, run_id, shared=self._settings.shared_tags),
            )
        with aws_call(f"limiting how long log group {name} keeps lines"):
            self._client.put_retention_policy(logGroupName=name, retentionInDays=_DAYS)


class LogGroups(Adapter):
    """Finds log groups of clusters, and deletes those that the product made."""

    def release(self, cluster_id: ClusterId, name: str) -> None:
        """Delete a group with its lines; nothing happens where it is gone."""
        with ignoring_gone_or_busy(f"deleting log group {name} of {cluster_id}", _BUSY):
            self._client.delete_log_group(logGroupName=name)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List the group of the cluster's metrics."""
        name, what = metrics_log_group(cluster_id), f"listing log groups of {cluster_id}"
        prefix = {"logGroupNamePrefix": name}
        found = listed(self._client, "describe_log_groups", "logGroups", what, **prefix)
        is_there = any(each["logGroupName"] == name for each in found)
        return [Left(ResourceKind.LOG_GROUP, name, name)] if is_there else []
