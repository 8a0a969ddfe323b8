"""EKS clusters that somebody else made: whether runs may use one, by what EKS says of it.

Nothing here changes a cluster, and the product never gives itself rights. The bot asks when a name
is typed; `stationmaster.checks.existing` later asks Kubernetes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.aws.access_entries import admin_policy_arn
from stationmaster.aws.calls import Adapter, AwsNotFound, aws_call
from stationmaster.domain.catalogue.kubernetes_versions import checked_range, numbers
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.names import POD_IDENTITY_AGENT

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient
    from mypy_boto3_eks.type_defs import ClusterTypeDef

_MODES: Final = ("API", "API_AND_CONFIG_MAP")


class ExistingClusters(Adapter):
    """Looks at EKS clusters that the product did not make."""

    _client: EKSClient

    def look_up(self, name: str) -> None:
        """Refuse a cluster that runs cannot use, as far as EKS knows.

        Raises:
            NotPossibleNow: they cannot; says why, and what its owner types.
            TransientError: EKS does not answer.
        """
        self._refuse_unlisted(name)
        if problem := self._why_unfit(name, self._described(name)):
            raise NotPossibleNow(f"EKS cluster {name} {problem}")
        self._refuse_without_entries(name)
        self._refuse_without_agent(name)

    def _refuse_unlisted(self, name: str) -> None:
        listed = self._settings.eks_clusters
        if not listed:
            raise NotPossibleNow(
                f"cluster=eks:{name} is not available here: this deployment uses no existing EKS "
                "cluster; its owner lists them as eks_clusters in cdk.json, see docs/deploy.md"
            )
        if name not in listed and "*" not in listed:
            raise NotPossibleNow(
                f"cluster=eks:{name} is not one that this deployment may use: "
                f"{', '.join(listed)}; its owner lists them as eks_clusters in cdk.json"
            )

    def _described(self, name: str) -> ClusterTypeDef:
        try:
            with aws_call(f"reading EKS cluster {name}"):
                return self._client.describe_cluster(name=name)["cluster"]
        except AwsNotFound:
            region = self._settings.region
            raise NotPossibleNow(
                f"there is no EKS cluster {name} in region {region} of the deployment's AWS "
                f"account; aws eks list-clusters --region {region} shows them"
            ) from None

    def _why_unfit(self, name: str, described: ClusterTypeDef) -> str:
        """Say what is seen of a cluster that is unfit as a whole, and what is needed; else ""."""
        status = described.get("status", "CREATING")
        version, (oldest, _) = described.get("version", ""), checked_range()
        network = described.get("resourcesVpcConfig", {}).get("vpcId", "")
        mode = described.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
        if status not in ("ACTIVE", "UPDATING"):
            return (
                f"is {status}, ACTIVE is needed; aws eks wait cluster-active --name {name} waits "
                "for it"
            )
        if numbers(version) < numbers(oldest):
            return (
                f"has Kubernetes {version}, {oldest} or newer is needed; type aws eks "
                f"update-cluster-version --name {name} --kubernetes-version {oldest}"
            )
        if network != self._settings.vpc_id:
            return (
                f"is in network {network}, and file systems are reached in "
                f"{self._settings.vpc_id}; a deployment uses another network with vpc_id and "
                "subnet_ids in cdk.json, see docs/deploy.md"
            )
        if mode not in _MODES:
            return (
                f"has authentication mode {mode}, API or API_AND_CONFIG_MAP is needed; type aws "
                f"eks update-cluster-config --name {name} --access-config "
                "authenticationMode=API_AND_CONFIG_MAP"
            )
        return ""

    def _refuse_without_entries(self, name: str) -> None:
        """Refuse a cluster that does not know each role of the deployment.

        Raises:
            NotPossibleNow: with the commands that let them in.
        """
        roles = self._settings.cluster_access_role_arns
        missing = [role for role in roles if not self._has_entry(name, role)]
        if not missing:
            return
        about = f"--cluster-name {name} --principal-arn $role"
        raise NotPossibleNow(
            f"EKS cluster {name} has no access entry for {len(missing)} of {len(roles)} roles of "
            f"this deployment; type for role in {' '.join(missing)}; do "
            f"aws eks create-access-entry {about}; aws eks associate-access-policy {about} "
            f"--policy-arn {admin_policy_arn(missing[0])} --access-scope type=cluster; done; "
            "docs/existing-clusters.md has exact rights in place of that policy"
        )

    def _has_entry(self, name: str, role_arn: str) -> bool:
        try:
            with aws_call(f"reading the access entry of {role_arn} in {name}"):
                self._client.describe_access_entry(clusterName=name, principalArn=role_arn)
        except AwsNotFound:
            return False
        return True

    def _refuse_without_agent(self, name: str) -> None:
        """Refuse a cluster whose pods cannot get AWS roles.

        Raises:
            NotPossibleNow: naming the add-on's status, or the command that installs it.
        """
        about = f"--cluster-name {name} --addon-name {POD_IDENTITY_AGENT}"
        try:
            with aws_call(f"reading add-on {POD_IDENTITY_AGENT} of {name}"):
                addon = self._client.describe_addon(clusterName=name, addonName=POD_IDENTITY_AGENT)[
                    "addon"
                ]
        except AwsNotFound:
            raise NotPossibleNow(
                f"EKS cluster {name} has no add-on {POD_IDENTITY_AGENT}, through which pods get "
                f"their AWS roles; type aws eks create-addon {about}"
            ) from None
        status = addon.get("status", "CREATING")
        if status not in ("ACTIVE", "UPDATING"):
            raise NotPossibleNow(
                f"add-on {POD_IDENTITY_AGENT} of EKS cluster {name} is {status}, ACTIVE is needed; "
                f"aws eks describe-addon {about} says why"
            )
