"""EKS: the run's cluster, its node groups, its add-ons and who may talk to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict

from stationmaster.aws.calls import AwsConflict, AwsNotFound, aws_call
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.names import (
    LABEL_RUN_ID,
    NAMESPACE,
    RELAY,
    SYSTEM_NODE_GROUP,
    TRAINING_NODE_GROUP,
    TRAINING_TAINT,
    cluster_name,
    launch_template_name,
    tags,
)
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient

_ADMIN_POLICY: Final = "cluster-access-policy/AmazonEKSClusterAdminPolicy"
POD_IDENTITY_ADDON: Final = "eks-pod-identity-agent"


def admin_policy_arn(role_arn: str) -> str:
    """The cluster administrator's policy, in the role's partition (aws, aws-cn, aws-us-gov)."""
    return f"arn:{role_arn.split(':')[1]}:eks::aws:{_ADMIN_POLICY}"


class EksCluster(BaseModel):
    """One EKS cluster; endpoint and certificate are empty until it is active."""

    model_config = ConfigDict(frozen=True)

    name: str
    status: str
    endpoint: str = ""
    certificate_authority: str = ""
    security_group_id: str = ""
    failure: str = ""


class NodeGroup(BaseModel):
    """One managed node group; `failure` has the health issues that EKS reports."""

    model_config = ConfigDict(frozen=True)

    name: str
    status: str
    failure: str = ""


class Clusters:
    """Creates, finds and deletes clusters of runs. Each run has its own."""

    def __init__(self, settings: Settings, client: EKSClient) -> None:
        self._settings = settings
        self._client = client

    def describe(self, run_id: str) -> EksCluster | None:
        """The run's cluster, or None."""
        name = cluster_name(run_id)
        try:
            with aws_call(f"reading cluster {name}"):
                found = self._client.describe_cluster(name=name)["cluster"]
        except AwsNotFound:
            return None
        issues = found.get("health", {}).get("issues", [])
        return EksCluster(
            name=name,
            status=found.get("status", "CREATING"),
            endpoint=found.get("endpoint", ""),
            certificate_authority=found.get("certificateAuthority", {}).get("data", ""),
            security_group_id=found.get("resourcesVpcConfig", {}).get("clusterSecurityGroupId", ""),
            failure="; ".join(f"{i.get('code')}: {i.get('message')}" for i in issues),
        )

    def create(self, run_id: str, *, security_group_id: str) -> None:
        """Request the run's cluster: access entries instead of aws-auth, private endpoint on."""
        try:
            with aws_call(f"creating cluster {cluster_name(run_id)}"):
                self._client.create_cluster(
                    name=cluster_name(run_id),
                    version=self._settings.kubernetes_version,
                    roleArn=self._settings.cluster_role_arn,
                    resourcesVpcConfig={
                        "subnetIds": list(self._settings.subnet_ids),
                        "securityGroupIds": [security_group_id],
                        "endpointPrivateAccess": True,
                        "endpointPublicAccess": True,
                    },
                    accessConfig={
                        "authenticationMode": "API",
                        "bootstrapClusterCreatorAdminPermissions": False,
                    },
                    clientRequestToken=run_id,
                    tags=tags(run_id),
                )
        except AwsConflict:
            return  # an earlier attempt's request got through

    def ensure_access(self, run_id: str) -> None:
        """Let the product's functions in, and give the relay its AWS role through Pod Identity."""
        name = cluster_name(run_id)
        for role_arn in self._settings.cluster_access_role_arns:
            self._once(
                f"granting {role_arn} access to {name}",
                self._client.create_access_entry,
                clusterName=name,
                principalArn=role_arn,
                tags=tags(run_id),
            )
            self._once(
                f"associating the admin policy with {role_arn}",
                self._client.associate_access_policy,
                clusterName=name,
                principalArn=role_arn,
                policyArn=admin_policy_arn(role_arn),
                accessScope={"type": "cluster"},
            )
        if self._settings.relay_role_arn:
            self._once(
                f"giving the relay of {name} its role",
                self._client.create_pod_identity_association,
                clusterName=name,
                namespace=NAMESPACE,
                serviceAccount=RELAY,
                roleArn=self._settings.relay_role_arn,
                tags=tags(run_id),
            )

    def ensure_addon(self, run_id: str, name: str, *, role_arn: str = "") -> str:
        """Create the add-on if it is missing; its status, e.g. CREATING, ACTIVE or DEGRADED."""
        cluster = cluster_name(run_id)
        try:
            with aws_call(f"reading add-on {name}"):
                addon = self._client.describe_addon(clusterName=cluster, addonName=name)["addon"]
            return addon.get("status", "CREATING")
        except AwsNotFound:
            arguments: dict[str, Any] = {}
            if role_arn:
                arguments["podIdentityAssociations"] = [
                    {"serviceAccount": "fsx-csi-controller-sa", "roleArn": role_arn}
                ]
            self._once(
                f"creating add-on {name}",
                self._client.create_addon,
                clusterName=cluster,
                addonName=name,
                resolveConflicts="OVERWRITE",
                tags=tags(run_id),
                **arguments,
            )
            return "CREATING"

    def node_group(self, run_id: str, name: str) -> NodeGroup | None:
        """One of the run's node groups, or None."""
        try:
            with aws_call(f"reading node group {name} of run {run_id}"):
                found = self._client.describe_nodegroup(
                    clusterName=cluster_name(run_id), nodegroupName=name
                )["nodegroup"]
        except AwsNotFound:
            return None
        issues = found.get("health", {}).get("issues", [])
        return NodeGroup(
            name=name,
            status=found.get("status", "CREATING"),
            failure="; ".join(f"{i.get('code')}: {i.get('message')}" for i in issues),
        )

    def create_system_nodes(self, run_id: str, *, instance_type: str) -> None:
        """Request the node group that operators, CoreDNS and the relay run on."""
        self._create_node_group(
            run_id,
            SYSTEM_NODE_GROUP,
            subnets=list(self._settings.subnet_ids),
            instanceTypes=[instance_type],
            amiType="AL2023_x86_64_STANDARD",
            scalingConfig={"minSize": 1, "maxSize": 1, "desiredSize": 1},
            launchTemplate={
                "name": launch_template_name(run_id, SYSTEM_NODE_GROUP),
                "version": "$Latest",
            },
        )

    def create_training_nodes(
        self, run_id: str, *, instance: InstanceType, count: int, subnet_id: str
    ) -> None:
        """Request the tainted node group that training runs on, in one zone, at a fixed size."""
        has_gpu = instance.num_gpus > 0
        labels = {"stationmaster/node-group": TRAINING_NODE_GROUP, LABEL_RUN_ID: run_id}
        if has_gpu:
            labels["nvidia.com/gpu.present"] = "true"  # the device plugin's DaemonSet selects it
        self._create_node_group(
            run_id,
            TRAINING_NODE_GROUP,
            subnets=[subnet_id],
            instanceTypes=[instance.name],
            amiType="AL2023_x86_64_NVIDIA" if has_gpu else "AL2023_x86_64_STANDARD",
            scalingConfig={"minSize": count, "maxSize": count, "desiredSize": count},
            launchTemplate={"name": launch_template_name(run_id), "version": "$Latest"},
            labels=labels,
            taints=[{"key": TRAINING_TAINT, "value": "true", "effect": "NO_SCHEDULE"}],
        )

    def list_for_run(self, run_id: str) -> list[str]:
        """The run's cluster and node groups that still exist, as `kind name` for a person."""
        cluster = self.describe(run_id)
        if cluster is None:
            return []
        groups = self.list_node_groups(run_id)
        return [f"cluster {cluster.name}", *(f"node group {name}" for name in groups)]

    def list_node_groups(self, run_id: str) -> list[str]:
        """Names of the node groups that the run's cluster has now; none without a cluster."""
        name = cluster_name(run_id)
        try:
            with aws_call(f"listing node groups of {name}"):
                return self._client.list_nodegroups(clusterName=name)["nodegroups"]
        except AwsNotFound:
            return []

    def delete_node_group(self, run_id: str, name: str) -> None:
        """Request the deletion; a group that is gone or busy is left to the next call."""
        self._quietly(
            f"deleting node group {name} of run {run_id}",
            self._client.delete_nodegroup,
            clusterName=cluster_name(run_id),
            nodegroupName=name,
        )

    def delete(self, run_id: str) -> None:
        """Request the cluster's deletion; one that is gone or busy is left to the next call."""
        self._quietly(
            f"deleting cluster {cluster_name(run_id)}",
            self._client.delete_cluster,
            name=cluster_name(run_id),
        )

    def _create_node_group(self, run_id: str, name: str, **arguments: Any) -> None:
        self._once(
            f"creating node group {name} of run {run_id}",
            self._client.create_nodegroup,
            clusterName=cluster_name(run_id),
            nodegroupName=name,
            nodeRole=self._settings.node_role_arn,
            clientRequestToken=f"{run_id}-{name}",
            tags=tags(run_id),
            **arguments,
        )

    @staticmethod
    def _once(what: str, create: Any, **arguments: Any) -> None:
        try:
            with aws_call(what):
                create(**arguments)
        except AwsConflict:
            return

    @staticmethod
    def _quietly(what: str, delete: Any, **arguments: Any) -> None:
        try:
            with aws_call(what):
                delete(**arguments)
        except (AwsNotFound, AwsConflict):
            return
