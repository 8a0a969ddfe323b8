"""SageMaker HyperPod clusters that somebody made: which EKS cluster orchestrates one."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.calls import Adapter, AwsNotFound, aws_call
from stationmaster.domain.errors import NotPossibleNow

HYPERPOD_ACTIONS: Final = ("sagemaker:DescribeCluster",)


class HyperPodClusters(Adapter):
    """Looks at HyperPod clusters."""

    def eks_name(self, name: str) -> str:
        """Return the name of the EKS cluster of a HyperPod cluster.

        Raises:
            NotPossibleNow: there is no such cluster, Slurm orchestrates it, or the deployment uses
                no existing cluster, and may not ask.
            TransientError: SageMaker does not answer.
        """
        if not self._settings.eks_clusters:
            raise NotPossibleNow(
                f"cluster=hyperpod:{name} is not available here: this deployment uses no existing "
                "EKS cluster; its owner lists them as eks_clusters in cdk.json, see docs/deploy.md"
            )
        try:
            with aws_call(f"reading HyperPod cluster {name}"):
                found = self._client.describe_cluster(ClusterName=name)
        except AwsNotFound:
            region = self._settings.region
            raise NotPossibleNow(
                f"there is no HyperPod cluster {name} in region {region} of the deployment's AWS "
                f"account; aws sagemaker list-clusters --region {region} shows them"
            ) from None
        eks_arn = found.get("Orchestrator", {}).get("Eks", {}).get("ClusterArn", "")
        if not eks_arn:
            raise NotPossibleNow(
                f"HyperPod cluster {name} has no EKS cluster: Slurm orchestrates it, and runs are "
                "Kubernetes jobs; name one that EKS orchestrates"
            )
        return str(eks_arn).rpartition("/")[2]
