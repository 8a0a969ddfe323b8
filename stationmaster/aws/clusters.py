"""EKS clusters: the control planes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import (
    Adapter,
    AwsNotFound,
    aws_call,
    health_issues,
    ignoring_existing,
    ignoring_gone_or_busy,
    listed,
)
from stationmaster.domain.catalogue.kubernetes_versions import (
    OfferedVersion,
    Support,
    choose_version,
)
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import cluster_name, tags
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient
    from mypy_boto3_eks.type_defs import ClusterVersionInformationTypeDef, VpcConfigRequestTypeDef

_ANYWHERE: Final = "0.0.0.0/0"
# AWS grants it on all resources or none.
VERSION_ACTIONS: Final = ("eks:DescribeClusterVersions",)


class EksCluster(Frozen):
    """An EKS cluster; endpoint and certificate are empty until it is active."""

    name: str
    status: str
    endpoint: str = ""
    certificate_authority: str = ""
    security_group_id: str = ""
    failure: str = ""
    is_closed: bool = False
    """Whether its API is private, or public for some addresses only."""


class Clusters(Adapter):
    """Creates, finds and deletes control planes."""

    _client: EKSClient

    def describe(self, cluster_id: ClusterId) -> EksCluster | None:
        """Return the EKS cluster that was made for a cluster, or None."""
        return self.find(cluster_name(cluster_id))

    def find(self, name: str) -> EksCluster | None:
        """Return the EKS cluster of that name, whoever made it, or None."""
        try:
            with aws_call(f"reading cluster {name}"):
                found = self._client.describe_cluster(name=name)["cluster"]
        except AwsNotFound:
            return None
        network = found.get("resourcesVpcConfig", {})
        return EksCluster(
            name=name,
            status=found.get("status", "CREATING"),
            endpoint=found.get("endpoint", ""),
            certificate_authority=found.get("certificateAuthority", {}).get("data", ""),
            security_group_id=network.get("clusterSecurityGroupId", ""),
            failure=health_issues(found),
            is_closed=not network.get("endpointPublicAccess", True)
            or _ANYWHERE not in network.get("publicAccessCidrs", [_ANYWHERE]),
        )

    def choose_version(self) -> OfferedVersion:
        """Choose the Kubernetes version of a new cluster: the one that is set, or EKS's best offer.

        Raises:
            PermanentError: EKS does not offer it, or none that the plugins were checked with.
            TransientError: EKS does not answer.
        """
        wanted = self._settings.kubernetes_version
        return choose_version(offered_versions(self._client), wanted=wanted)

    def ensure(
        self,
        cluster_id: ClusterId,
        *,
        version: str,
        security_group_id: str,
        run_id: RunId | None = None,
    ) -> None:
        """Request the control plane: access entries instead of aws-auth, private endpoint on.

        Raises:
            PermanentError: EKS refuses, e.g. for lack of room in a zone; says what to change.
            TransientError: EKS does not know the security group yet.
        """
        name = cluster_name(cluster_id)
        with ignoring_existing(f"creating cluster {name}", new=(security_group_id,)):
            self._client.create_cluster(
                name=name,
                version=version,
                roleArn=self._settings.cluster_role_arn,
                resourcesVpcConfig=self._network(security_group_id),
                accessConfig={
                    "authenticationMode": "API",
                    "bootstrapClusterCreatorAdminPermissions": False,
                },
                clientRequestToken=cluster_id,
                tags=tags(cluster_id, run_id, shared=self._settings.shared_tags),
            )

    def _network(self, security_group_id: str) -> VpcConfigRequestTypeDef:
        """Say where the control plane is and who reaches it.

        Functions in the network share their own group with it, which lets its members in.
        """
        settings = self._settings
        groups = [security_group_id, settings.functions_security_group_id]
        network: VpcConfigRequestTypeDef = {
            "subnetIds": list(settings.subnet_ids),
            "securityGroupIds": [group for group in groups if group],
            "endpointPrivateAccess": True,
            "endpointPublicAccess": settings.public_api,
        }
        if settings.public_api and settings.api_cidrs:
            network["publicAccessCidrs"] = list(settings.api_cidrs)
        return network

    def release(self, cluster_id: ClusterId, name: str) -> None:
        """Request the deletion; a cluster that is gone or busy is left to the next call."""
        with ignoring_gone_or_busy(f"deleting cluster {name} of {cluster_id}"):
            self._client.delete_cluster(name=name)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List the control plane, if it still exists."""
        cluster = self.describe(cluster_id)
        return [] if cluster is None else [Left(ResourceKind.CLUSTER, cluster.name, cluster.name)]


def offered_versions(client: EKSClient) -> list[OfferedVersion]:
    """List all versions in standard or extended support.

    Raises:
        TransientError, PermanentError: EKS does not answer, or refuses to.
    """
    what = "reading the Kubernetes versions of EKS"
    found = listed(client, "describe_cluster_versions", "clusterVersions", what)
    supported = {each.value for each in Support}
    return [_offered(each) for each in found if each.get("versionStatus") in supported]


def _offered(found: ClusterVersionInformationTypeDef) -> OfferedVersion:
    ends = found.get("endOfStandardSupportDate")
    return OfferedVersion(
        version=found["clusterVersion"],
        support=Support(found["versionStatus"]),
        is_default=found.get("defaultVersion", False),
        standard_support_ends=ends.date() if ends is not None else None,
    )
