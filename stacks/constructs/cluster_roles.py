"""The roles that a cluster, its nodes and some of its pods take on; created once.

Functions may pass exactly these roles and no other (see `permissions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.acknowledgements import accept, accept_wildcard
from stacks.constructs.statements import LISTING
from stationmaster.domain.bus import EVENT_SOURCE, RELAY_BATCH_DETAIL_TYPE
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import (
    FSX_CSI_ACCOUNT,
    METRICS_ACCOUNT,
    RELAY,
    RESULTS_ACCOUNTS,
    STAGER,
    cluster_name,
    metrics_log_group,
    relay_name,
)
from stationmaster.domain.results import relayed_prefix, results_prefix

_RESULTS: Final = "results lie under the ids of runs, unknown at deployment"


class ClusterRoles(Construct):
    """A role each for control plane, nodes, relay, saver, stager, FSx driver and metrics."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        bus: events.IEventBus,
        artifacts_arn: str,
        key: kms.IKey,
        dataset_bucket_arns: Sequence[str] = (),
        dataset_key_arns: Sequence[str] = (),
        eks_clusters: Sequence[str] = (),
        has_metrics: bool = False,
    ) -> None:
        """`eks_clusters` names the existing clusters in which pods of runs take on roles."""
        super().__init__(scope, construct_id)
        self._guest_of = eks_clusters
        self.metrics = self._metrics() if has_metrics else None
        self.cluster = self._managed("Cluster", "eks.amazonaws.com", ["AmazonEKSClusterPolicy"])
        self.nodes = self._managed(
            "Nodes",
            "ec2.amazonaws.com",
            [
                "AmazonEKSWorkerNodePolicy",
                "AmazonEKS_CNI_Policy",
                "AmazonEC2ContainerRegistryPullOnly",
            ],
        )
        self.relay = self._pod_role("Relay", RELAY)
        self.relay.add_to_policy(
            iam.PolicyStatement(
                actions=["events:PutEvents"],
                resources=[bus.event_bus_arn],
                conditions={
                    "StringEquals": {
                        "events:source": EVENT_SOURCE,
                        "events:detail-type": RELAY_BATCH_DETAIL_TYPE,
                    }
                },
            )
        )
        # The logs of pods that have ended, which may be gone when the saver comes.
        logs = f"{artifacts_arn}/{relayed_prefix('${aws:PrincipalTag/kubernetes-pod-name}')}/*"
        self.relay.add_to_policy(iam.PolicyStatement(actions=["s3:PutObject"], resources=[logs]))
        self._use_key(self.relay, key, "kms:GenerateDataKey")
        accept_wildcard(self.relay, logs, _RESULTS)
        self.saver = self._saver(artifacts_arn, key)
        self.stager = self._stager(dataset_bucket_arns, dataset_key_arns)
        self.fsx_csi = self._pod_role("FsxCsi", FSX_CSI_ACCOUNT)
        # Volumes are static: the driver mounts what exists, and neither creates nor deletes.
        self.fsx_csi.add_to_policy(
            iam.PolicyStatement(actions=["fsx:DescribeFileSystems"], resources=["*"])
        )
        accept_wildcard(
            self.fsx_csi, "*", "fsx:DescribeFileSystems is not granted on single file systems"
        )

    def _managed(self, name: str, principal: str, policies: list[str]) -> iam.Role:
        role = iam.Role(
            self,
            name,
            assumed_by=iam.ServicePrincipal(principal),
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(p) for p in policies],
        )
        for policy in policies:
            accept(
                role,
                f"IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{policy}]",
                "EKS documents this policy as required, and AWS keeps it in step with the AMIs",
            )
        return role

    def _saver(self, artifacts_arn: str, key: kms.IKey) -> iam.Role:
        """Allow adding to and reading one result, and looking for parts of an earlier try, not
        deleting.

        The name of the pod's service account says which result. Source: EKS user guide, "Grant Pods
        access to AWS resources based on tags".
        """
        role = self._pod_role("Saver", RESULTS_ACCOUNTS)
        prefix = results_prefix(RunId("${aws:PrincipalTag/kubernetes-service-account}"))
        results = f"{artifacts_arn}/{prefix}*"
        role.add_to_policy(
            iam.PolicyStatement(
                actions=[
                    "s3:PutObject",
                    "s3:GetObject",
                    "s3:AbortMultipartUpload",
                    "s3:ListMultipartUploadParts",
                ],
                resources=[results],
            )
        )
        relay = relay_name(RunId("${aws:PrincipalTag/kubernetes-service-account}"))
        relayed = relayed_prefix(f"{relay}-*")
        role.add_to_policy(
            iam.PolicyStatement(actions=["s3:GetObject"], resources=[f"{artifacts_arn}/{relayed}"])
        )
        accept_wildcard(role, f"{artifacts_arn}/{relayed}", _RESULTS)
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["s3:ListBucket", "s3:ListBucketMultipartUploads"],
                resources=[artifacts_arn],
                conditions={"StringLike": {"s3:prefix": [f"{prefix}*", relayed]}},
            )
        )
        self._use_key(role, key, "kms:GenerateDataKey", "kms:Decrypt")
        accept_wildcard(role, results, _RESULTS)
        return role

    def _use_key(self, role: iam.Role, key: kms.IKey, *actions: str) -> None:
        """Allow the artifacts' key, for what S3 does with it."""
        via = f"s3.{cdk.Stack.of(self).region}.amazonaws.com"
        role.add_to_policy(
            iam.PolicyStatement(
                actions=[*actions],
                resources=[key.key_arn],
                conditions={"StringEquals": {"kms:ViaService": via}},
            )
        )

    def _stager(self, bucket_arns: Sequence[str], key_arns: Sequence[str]) -> iam.Role:
        """Allow reading the buckets of data that the deployment names."""
        role = self._pod_role("Stager", STAGER)
        if bucket_arns:
            objects = [f"{each}/*" for each in bucket_arns]
            role.add_to_policy(
                iam.PolicyStatement(actions=["s3:ListBucket"], resources=[*bucket_arns])
            )
            role.add_to_policy(iam.PolicyStatement(actions=["s3:GetObject"], resources=objects))
            for each in objects:
                accept_wildcard(role, each, "which objects a run trains on is a person's choice")
        if key_arns:
            role.add_to_policy(
                iam.PolicyStatement(
                    actions=["kms:Decrypt"],
                    resources=[*key_arns],
                    conditions={"StringLike": {"kms:ViaService": "s3.*.amazonaws.com"}},
                )
            )
        return role

    def _metrics(self) -> iam.Role:
        """Allow writing the log groups of clusters' metrics, and reading what a node is made of.

        Source: AWS managed policy CloudWatchAgentServerPolicy, without its rights on all log
        groups, on X-Ray and on parameters.
        """
        role = self._pod_role("Metrics", METRICS_ACCOUNT)
        groups = cdk.Stack.of(self).format_arn(
            service="logs",
            resource="log-group",
            resource_name=f"{metrics_log_group('*')}:*",
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )
        role.add_to_policy(
            iam.PolicyStatement(
                actions=[
                    "logs:CreateLogStream",
                    "logs:DescribeLogStreams",
                    "logs:PutLogEvents",
                ],
                resources=[groups],
            )
        )
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["ec2:DescribeTags", "ec2:DescribeVolumes", "logs:DescribeLogGroups"],
                resources=["*"],
            )
        )
        accept_wildcard(role, groups, "a cluster's name is unknown at deployment")
        accept_wildcard(role, "*", LISTING)
        return role

    def _pod_role(self, name: str, account: str) -> iam.Role:
        """Make a role for EKS Pod Identity: of one service account, in clusters that runs may use.

        Pod Identity says where a pod is by the tags of its session, and by no source ARN. Source:
        EKS user guide, "Create IAM role with trust policy required by EKS Pod Identity".
        """
        principal = iam.ServicePrincipal(
            "pods.eks.amazonaws.com",
            conditions={
                "StringEquals": {"aws:SourceAccount": cdk.Stack.of(self).account},
                "StringLike": {
                    "aws:RequestTag/eks-cluster-name": [cluster_name("*"), *self._guest_of],
                    "aws:RequestTag/kubernetes-service-account": account,
                },
            },
        )
        return iam.Role(self, name, assumed_by=iam.SessionTagsPrincipal(principal))
