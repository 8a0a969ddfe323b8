"""The roles that a cluster, its nodes and some of its pods take on; created once.

Functions may pass exactly these roles and no other (see `permissions`).
"""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.acknowledgements import accept
from stacks.constructs.statements import CHOSEN, LISTING, RESULTS, Statement, allow, arn, via
from stationmaster.domain.bus import EVENT_SOURCE, RELAY_BATCH_DETAIL_TYPE
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    FSX_CSI_ACCOUNT,
    METRICS_ACCOUNT,
    RELAY,
    RESULTS_ACCOUNTS,
    STAGER,
    cluster_name,
    metrics_log_group,
    name_of_own,
    own_namespace,
    relay_name,
)
from stationmaster.domain.results import relayed_prefix, results_prefix


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
        self._key = key
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
        # The logs of pods that have ended, which may be gone when the saver comes.
        logs = f"{artifacts_arn}/{relayed_prefix('${aws:PrincipalTag/kubernetes-pod-name}')}/*"
        batches = {"events:source": EVENT_SOURCE, "events:detail-type": RELAY_BATCH_DETAIL_TYPE}
        self.relay = self._pod_role(
            "Relay",
            RELAY,
            Statement(
                ("events:PutEvents",), (bus.event_bus_arn,), conditions={"StringEquals": batches}
            ),
            Statement(("s3:PutObject",), (logs,), RESULTS),
            self._use_key("kms:GenerateDataKey"),
        )
        self.saver = self._saver(artifacts_arn)
        self.stager = self._stager(dataset_bucket_arns, dataset_key_arns)
        # Volumes are static: the driver mounts what exists, and neither creates nor deletes.
        why = "fsx:DescribeFileSystems is not granted on single file systems"
        mount = Statement(("fsx:DescribeFileSystems",), ("*",), why)
        self.fsx_csi = self._pod_role("FsxCsi", FSX_CSI_ACCOUNT, mount)

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

    def _saver(self, artifacts_arn: str) -> iam.Role:
        """Allow adding to and reading one result, and looking for parts of an earlier try, not
        deleting.

        The name of the pod's service account says which result. Source: EKS user guide, "Grant Pods
        access to AWS resources based on tags".
        """
        account = RunId("${aws:PrincipalTag/kubernetes-service-account}")
        prefix, relayed = results_prefix(account), relayed_prefix(f"{relay_name(account)}-*")
        of_result = (
            "s3:PutObject",
            "s3:GetObject",
            "s3:AbortMultipartUpload",
            "s3:ListMultipartUploadParts",
        )
        return self._pod_role(
            "Saver",
            RESULTS_ACCOUNTS,
            Statement(of_result, (f"{artifacts_arn}/{prefix}*",), RESULTS),
            Statement(("s3:GetObject",), (f"{artifacts_arn}/{relayed}",), RESULTS),
            Statement(
                ("s3:ListBucket", "s3:ListBucketMultipartUploads"),
                (artifacts_arn,),
                conditions={"StringLike": {"s3:prefix": [f"{prefix}*", relayed]}},
            ),
            self._use_key("kms:GenerateDataKey", "kms:Decrypt"),
        )

    def _use_key(self, *actions: str) -> Statement:
        """Allow the artifacts' key, for what S3 does with it."""
        return Statement(actions, (self._key.key_arn,), conditions=via("s3"))

    def _stager(self, bucket_arns: Sequence[str], key_arns: Sequence[str]) -> iam.Role:
        """Allow reading the buckets of data that the deployment names."""
        objects = tuple(f"{each}/*" for each in bucket_arns)
        by_s3 = {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com"}}
        reading = (
            Statement(("s3:ListBucket",), tuple(bucket_arns)),
            Statement(("s3:GetObject",), objects, CHOSEN),
            Statement(("kms:Decrypt",), tuple(key_arns), conditions=by_s3),
        )
        return self._pod_role("Stager", STAGER, *(each for each in reading if each.resources))

    def _metrics(self) -> iam.Role:
        """Allow writing the log groups of clusters' metrics, and reading what a node is made of.

        Source: AWS managed policy CloudWatchAgentServerPolicy, without its rights on all log
        groups, on X-Ray and on parameters.
        """
        groups = arn("logs", "log-group", f"{metrics_log_group('*')}:*", sep=":")
        writing = ("logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")
        listing = ("ec2:DescribeTags", "ec2:DescribeVolumes", "logs:DescribeLogGroups")
        return self._pod_role(
            "Metrics",
            METRICS_ACCOUNT,
            Statement(writing, (groups,), "a cluster's name is unknown at deployment"),
            Statement(listing, ("*",), LISTING),
        )

    def _pod_role(self, name: str, account: str, *may: Statement) -> iam.Role:
        """Make a role for EKS Pod Identity: of one service account, in clusters that runs may use.

        Pod Identity says where a pod is by the tags of its session, and by no source ARN. Source:
        EKS user guide, "Create IAM role with trust policy required by EKS Pod Identity".
        """
        accounts = [account]
        if account in (RELAY, STAGER):  # what each guest in the namespace of a team calls its own
            accounts += [name_of_own(account, own_namespace(ClusterId("*")))]
        principal = iam.ServicePrincipal(
            "pods.eks.amazonaws.com",
            conditions={
                "StringEquals": {"aws:SourceAccount": cdk.Stack.of(self).account},
                "StringLike": {
                    "aws:RequestTag/eks-cluster-name": [cluster_name("*"), *self._guest_of],
                    "aws:RequestTag/kubernetes-service-account": accounts,
                },
            },
        )
        role = iam.Role(self, name, assumed_by=iam.SessionTagsPrincipal(principal))
        allow(role, *may)
        return role
