"""EKS Pod Identity associations: AWS roles of pods.

They go with their cluster; those in an EKS cluster of others are listed and deleted one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stationmaster.aws.calls import (
    AwsNotFound,
    aws_call,
    ignoring_existing,
    ignoring_gone_or_busy,
)
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    NAMESPACE,
    RELAY,
    SAVER,
    STAGER,
    cluster_name,
    own_namespace,
    tags,
)
from stationmaster.domain.resources import Left, ResourceKind
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
        self._associate(cluster_name(cluster_id), NAMESPACE, self._tags(cluster_id, run_id))

    def ensure_in(
        self, cluster_id: ClusterId, eks_name: str, *, run_id: RunId | None = None
    ) -> None:
        """The same in an EKS cluster of others, where the cluster has a namespace of its own."""
        self._associate(eks_name, own_namespace(cluster_id), self._tags(cluster_id, run_id))

    def _tags(self, cluster_id: ClusterId, run_id: RunId | None) -> dict[str, str]:
        return tags(cluster_id, run_id, deployment=self._settings.deployment)

    def _associate(self, name: str, namespace: str, tagged: dict[str, str]) -> None:
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
                    namespace=namespace,
                    serviceAccount=account,
                    roleArn=role_arn,
                    tags=tagged,
                )

    def left_in(self, cluster_id: ClusterId, eks_name: str) -> list[Left]:
        """Those that a cluster still has in an EKS cluster of others; none once that is gone."""
        namespace = own_namespace(cluster_id)
        pages = self._client.get_paginator("list_pod_identity_associations")
        try:
            with aws_call(f"listing pod identity associations of {eks_name}"):
                found = [
                    each
                    for page in pages.paginate(clusterName=eks_name, namespace=namespace)
                    for each in page["associations"]
                ]
        except AwsNotFound:
            return []
        return [
            Left(ResourceKind.POD_IDENTITY, each["serviceAccount"], each["associationId"])
            for each in found
        ]

    def release_in(self, eks_name: str, association_id: str) -> None:
        """Delete one of these; one that is gone is fine."""
        with ignoring_gone_or_busy(f"deleting pod identity association {association_id}"):
            self._client.delete_pod_identity_association(
                clusterName=eks_name, associationId=association_id
            )
