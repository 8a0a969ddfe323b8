"""EKS Pod Identity associations: AWS roles of pods. They go with their cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stationmaster.aws.calls import ignoring_existing
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import NAMESPACE, RELAY, SAVER, STAGER, cluster_name, tags
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient


class PodIdentities:
    """Gives the relay, the saver and the stager of each cluster their AWS roles."""

    def __init__(self, settings: Settings, client: EKSClient) -> None:
        self._settings = settings
        self._client = client

    def ensure(self, cluster_id: ClusterId, *, run_id: RunId | None = None) -> None:
        """Associate each service account with its role, where the settings name one."""
        name = cluster_name(cluster_id)
        settings = self._settings
        roles = {
            RELAY: settings.relay_role_arn,
            SAVER: settings.saver_role_arn,
            STAGER: settings.stager_role_arn,
        }
        for account, role_arn in roles.items():
            if not role_arn:
                continue
            with ignoring_existing(f"giving {account} of {name} its role"):
                self._client.create_pod_identity_association(
                    clusterName=name,
                    namespace=NAMESPACE,
                    serviceAccount=account,
                    roleArn=role_arn,
                    tags=tags(cluster_id, run_id),
                )
