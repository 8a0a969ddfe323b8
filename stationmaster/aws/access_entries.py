"""EKS access entries: which AWS roles may talk to a cluster. They go with their cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import Adapter, ignoring_existing
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import PEOPLE, cluster_name, tags

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient

# Of EKS itself, in no account and region.
ACCESS_POLICIES: Final = "eks::aws:cluster-access-policy"
ADMIN_POLICY: Final = "AmazonEKSClusterAdminPolicy"
# Reads most things, and no secrets. Those that let people exec (edit, admin) and the one that reads
# all (admin view) read secrets as well, so the rest is given to PEOPLE by `plugins.relay`.
# Source: EKS user guide, "Review access policy permissions".
VIEW_POLICY: Final = "AmazonEKSViewPolicy"


def admin_policy_arn(role_arn: str) -> str:
    """Return the cluster administrator's policy in the role's partition (aws, aws-cn, ...)."""
    return _policy_arn(role_arn, ADMIN_POLICY)


def _policy_arn(role_arn: str, policy: str) -> str:
    return f"arn:{role_arn.split(':')[1]}:{ACCESS_POLICIES}/{policy}"


class AccessEntries(Adapter):
    """Lets the product's functions, and the people whom the deployment names, into clusters."""

    _client: EKSClient

    def ensure(self, cluster_id: ClusterId, *, run_id: RunId | None = None) -> None:
        """Make each of the product's roles an administrator of the cluster, and let people look."""
        for role_arn in self._settings.cluster_access_role_arns:
            self._let_in(cluster_id, role_arn, ADMIN_POLICY, groups=[], run_id=run_id)
        for role_arn in self._settings.kubectl_role_arns:
            try:
                self._let_in(cluster_id, role_arn, VIEW_POLICY, groups=[PEOPLE], run_id=run_id)
            except PermanentError as exc:
                raise PermanentError(f"{exc}; check kubectl_role_arns in cdk.json") from exc

    def _let_in(
        self,
        cluster_id: ClusterId,
        role_arn: str,
        policy: str,
        *,
        groups: list[str],
        run_id: RunId | None,
    ) -> None:
        name = cluster_name(cluster_id)
        with ignoring_existing(f"granting {role_arn} access to {name}"):
            self._client.create_access_entry(
                clusterName=name,
                principalArn=role_arn,
                kubernetesGroups=groups,
                tags=tags(cluster_id, run_id, shared=self._settings.shared_tags),
            )
        with ignoring_existing(f"associating {policy} with {role_arn}"):
            self._client.associate_access_policy(
                clusterName=name,
                principalArn=role_arn,
                policyArn=_policy_arn(role_arn, policy),
                accessScope={"type": "cluster"},
            )
