"""SageMaker HyperPod: clusters of instance groups whose nodes join an EKS cluster.

Only making and describing one is emulated; moto 5.2.5 knows neither who orchestrates one nor its
error for a missing one. Nodes carry the labels of AWS's pages, "Resilience-related Kubernetes
labels by SageMaker HyperPod", and belong to the service: EC2 does not list them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.services.eks import EksService
from stationmaster.local.aws.wire import ApiError, NativeService

# Emulated seconds until a cluster is in service, its nodes having joined: 10 to 25 minutes at AWS.
CREATE_S: Final = 600.0


class SageMakerService(NativeService):
    """The SageMaker API, as far as HyperPod clusters go."""

    signing_name = "sagemaker"

    def __init__(self, emulation: Emulation, eks: EksService) -> None:
        self.emulation = emulation
        self._eks = eks
        self._clusters: dict[str, dict[str, Any]] = {}

    def create_cluster(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start creating a HyperPod cluster on an EKS cluster that is there, or with Slurm."""
        name = str(params["ClusterName"])
        if name in self._clusters:
            raise ApiError("ResourceInUse", f"Cluster with name {name} already exists.")
        region, account = self.emulation.region, self.emulation.account_id
        arn = f"arn:aws:sagemaker:{region}:{account}:cluster/{uuid4().hex[:12]}"
        cluster = self._clusters[name] = {
            "ClusterArn": arn,
            "ClusterName": name,
            "ClusterStatus": "Creating",
            "CreationTime": datetime.now(UTC),
            "InstanceGroups": [
                {
                    "InstanceGroupName": group["InstanceGroupName"],
                    "InstanceType": group["InstanceType"],
                    "CurrentCount": 0,
                    "TargetCount": group["InstanceCount"],
                    "ExecutionRole": group["ExecutionRole"],
                    "ThreadsPerCore": group.get("ThreadsPerCore", 1),
                }
                for group in params.get("InstanceGroups", [])
            ],
            "NodeRecovery": params.get("NodeRecovery", "Automatic"),
            **{each: params[each] for each in ("Orchestrator", "VpcConfig") if each in params},
        }
        orchestrator = params.get("Orchestrator", {}).get("Eks", {}).get("ClusterArn", "")
        eks_name = str(orchestrator).rpartition("/")[2]
        if eks_name:
            self._eks.cluster(eks_name)
        self.emulation.clock.after(CREATE_S, lambda: self._created(cluster, eks_name))
        return {"ClusterArn": arn}

    def describe_cluster(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return one cluster, by its name or ARN."""
        asked = params["ClusterName"]
        for cluster in self._clusters.values():
            if asked in (cluster["ClusterName"], cluster["ClusterArn"]):
                return cluster
        raise ApiError("ResourceNotFound", f"Cluster with name {asked} does not exist.")

    def _created(self, cluster: dict[str, Any], eks_name: str) -> None:
        for group in cluster["InstanceGroups"] if eks_name else ():
            self.emulation.observer.node_group_active(
                cluster=eks_name,
                name=f"{cluster['ClusterName']}-{group['InstanceGroupName']}",
                instance_type=group["InstanceType"],
                instance_ids=[f"i-{uuid4().hex[:17]}" for _ in range(group["TargetCount"])],
                zone=f"{self.emulation.region}a",
                labels={
                    "sagemaker.amazonaws.com/cluster-name": cluster["ClusterName"],
                    "sagemaker.amazonaws.com/instance-group-name": group["InstanceGroupName"],
                    "sagemaker.amazonaws.com/node-health-status": "Schedulable",
                },
                taints=[],
                threads_per_core=group["ThreadsPerCore"],
            )
            group["CurrentCount"] = group["TargetCount"]
        cluster["ClusterStatus"] = "InService"
