"""EKS access entries: which AWS roles may talk to a cluster. They go with their cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import ignoring_existing
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import cluster_name, tags
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient

_ADMIN_POLICY: Final = "cluster-access-policy/AmazonEKSClusterAdminPolicy"


def admin_policy_arn(role_arn: str) -> str:
    """The cluster administrator's policy, in the role's partition (aws, aws-cn, aws-us-gov)."""
    return f"arn:{role_arn.split(':')[1]}:eks::aws:{_ADMIN_POLICY}"


class AccessEntries:
    """Lets the product's functions into clusters."""

    def __init__(self, settings: Settings, client: EKSClient) -> None:
        self._settings = settings
        self._client = client

    def ensure(self, cluster_id: ClusterId, *, run_id: RunId | None = None) -> None:
        """Make each of the product's roles an administrator of the cluster."""
        name = cluster_name(cluster_id)
        for role_arn in self._settings.cluster_access_role_arns:
            with ignoring_existing(f"granting {role_arn} access to {name}"):
                self._client.create_access_entry(
                    clusterName=name, principalArn=role_arn, tags=tags(cluster_id, run_id)
                )
            with ignoring_existing(f"associating the admin policy with {role_arn}"):
                self._client.associate_access_policy(
                    clusterName=name,
                    principalArn=role_arn,
                    policyArn=admin_policy_arn(role_arn),
                    accessScope={"type": "cluster"},
                )
