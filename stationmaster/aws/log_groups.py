"""CloudWatch log groups of clusters: AWS deletes none of them with its cluster.

The product makes one for the metrics of GPUs, and deletes it with the cluster; the metrics stay in
CloudWatch. EKS makes another one when somebody switches on the logs of a control plane, which the
product never does. That group has no tag and no retention, so its lines are kept and paid for. It
is somebody else's wish, so it is only listed.

Sources: EKS user guide, "Send control plane logs to CloudWatch Logs"; CloudWatch Logs API
reference, DeleteLogGroup.
"""

from __future__ import annotations

from typing import Any, Final

from stationmaster.aws.calls import (
    Adapter,
    aws_call,
    ignoring_existing,
    ignoring_gone_or_busy,
    listed,
)
from stationmaster.aws.kinds import Actions
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import control_plane_log_group, metrics_log_group, tags
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
_BEFORE, _AFTER = control_plane_log_group("|").split("|")


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
                tags=tags(cluster_id, run_id, deployment=self._settings.deployment),
            )
        with aws_call(f"limiting how long log group {name} keeps lines"):
            self._client.put_retention_policy(logGroupName=name, retentionInDays=_DAYS)


class LogGroups:
    """Finds log groups of clusters, and deletes those that the product made."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def release(self, cluster_id: ClusterId, name: str) -> None:
        """Delete a group with its lines; nothing happens where it is gone."""
        with ignoring_gone_or_busy(f"deleting log group {name} of {cluster_id}", _BUSY):
            self._client.delete_log_group(logGroupName=name)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List the group of the cluster's metrics."""
        name = metrics_log_group(cluster_id)
        return [_left(each) for each in self._groups(name) if each["logGroupName"] == name]

    def kept_for_ever(self) -> dict[ClusterId, Left]:
        """List each control plane's group whose lines do not expire; clusters may exist."""
        return {
            ClusterId(each["logGroupName"].removeprefix(_BEFORE).removesuffix(_AFTER)): _left(each)
            for each in self._groups(_BEFORE)
            if "retentionInDays" not in each and each["logGroupName"].endswith(_AFTER)
        }

    def _groups(self, prefix: str) -> list[Any]:
        what = f"listing log groups {prefix}*"
        return [
            *listed(
                self._client, "describe_log_groups", "logGroups", what, logGroupNamePrefix=prefix
            )
        ]


def _left(group: Any) -> Left:
    name = group["logGroupName"]
    return Left(ResourceKind.LOG_GROUP, name, name)
