"""EKS add-ons. They go with their cluster: nothing has to delete them before it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import AwsNotFound, aws_call, health_issues, ignoring_existing
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    FSX_CSI_ACCOUNT,
    FSX_CSI_ADDON,
    METRICS_ACCOUNT,
    METRICS_ADDON,
    NODE_MONITORING_ADDON,
    cluster_name,
    tags,
)
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient


# Metrics of nodes and GPUs, and nothing else: no logs of containers, and, because the agent's own
# configuration is replaced, no Application Signals.
# Source: CloudWatch user guide, "Install the CloudWatch agent with the Amazon CloudWatch
# Observability EKS add-on": Optional additional configurations.
_METRICS_ONLY: Final = {
    "agent": {
        "config": {
            "logs": {"metrics_collected": {"kubernetes": {"enhanced_container_insights": True}}}
        }
    },
    "containerLogs": {"enabled": False},
}


def addons_that_watch(settings: Settings, *, has_gpus: bool) -> list[str]:
    """List the add-ons that watch nodes for a deployment; no job waits for them."""
    wanted = {
        NODE_MONITORING_ADDON: settings.node_repair,
        METRICS_ADDON: bool(settings.metrics_role_arn) and has_gpus,
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


class Addon(Frozen):
    """An add-on; `failure` has the health issues that EKS reports."""

    status: str
    """EKS's word, e.g. CREATING, ACTIVE, DEGRADED or CREATE_FAILED."""
    failure: str = ""


class Addons:
    """Creates and finds add-ons of clusters."""

    def __init__(self, settings: Settings, client: EKSClient) -> None:
        self._client = client
        self._shared_tags = settings.shared_tags
        # Which AWS role the service account of an add-on's pods has.
        self._roles = {
            FSX_CSI_ADDON: (FSX_CSI_ACCOUNT, settings.fsx_csi_role_arn),
            METRICS_ADDON: (METRICS_ACCOUNT, settings.metrics_role_arn),
        }
        self._configuration = {METRICS_ADDON: json.dumps(_METRICS_ONLY)}

    def describe(self, cluster_id: ClusterId, name: str) -> Addon | None:
        """Return what EKS says of the add-on; None where it is missing."""
        try:
            with aws_call(f"reading add-on {name} of {cluster_id}"):
                addon = self._client.describe_addon(
                    clusterName=cluster_name(cluster_id), addonName=name
                )["addon"]
        except AwsNotFound:
            return None
        return Addon(
            status=addon.get("status", "CREATING"),
            failure=health_issues(addon),
        )

    def ensure(self, cluster_id: ClusterId, name: str, *, run_id: RunId | None = None) -> None:
        """Create the add-on if it is missing, with the AWS role that its pods need."""
        if self.describe(cluster_id, name) is not None:
            return
        account, role_arn = self._roles.get(name, ("", ""))
        arguments: dict[str, Any] = {}
        if role_arn:
            arguments["podIdentityAssociations"] = [
                {"serviceAccount": account, "roleArn": role_arn}
            ]
        if name in self._configuration:
            arguments["configurationValues"] = self._configuration[name]
        with ignoring_existing(f"creating add-on {name} of {cluster_id}"):
            self._client.create_addon(
                clusterName=cluster_name(cluster_id),
                addonName=name,
                resolveConflicts="OVERWRITE",
                tags=tags(cluster_id, run_id, shared=self._shared_tags),
                **arguments,
            )
