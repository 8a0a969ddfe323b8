"""Amazon EKS: clusters and managed node groups with the real lifecycles, on a fast clock.

Add-ons, access entries and pod identity are in `eks_inside`. Node groups run (emulated) EC2
instances, so that whoever lists instances finds orphans. It knows nothing of Kubernetes: what
happens inside a cluster is reported to the observer.
"""

from __future__ import annotations

import base64
import re
import uuid
from datetime import UTC, datetime
from typing import Any

from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.services import eks_shapes as shapes
from stationmaster.local.aws.services.eks_inside import InsideCluster
from stationmaster.local.aws.services.eks_network import EksNetwork
from stationmaster.local.aws.services.eks_nodes import Nodes
from stationmaster.local.aws.services.eks_records import Cluster, NodeGroup
from stationmaster.local.aws.wire import ApiError, paged

# Emulated seconds. Real clusters take 8-12 min, node groups 2-4 min; source: AWS samples' measured
# runs.
CLUSTER_CREATE_S = 480.0
CLUSTER_DELETE_S = 240.0
NODE_GROUP_CREATE_S = 180.0
NODE_GROUP_UPDATE_S = 120.0
NODE_GROUP_DELETE_S = 180.0
# The drain of a node that its Auto Scaling group terminates, and until another one has joined.
INSTANCE_END_S = 60.0
INSTANCE_LAUNCH_S = 180.0

_NAME = re.compile(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}")


class EksService(InsideCluster):
    """The EKS API."""

    signing_name = "eks"

    def __init__(self, emulation: Emulation) -> None:
        self.emulation = emulation
        self.clusters: dict[str, Cluster] = {}
        self._network = EksNetwork(emulation)
        self._nodes = Nodes(emulation, self._network)
        emulation.scaling_activities.replace = self.replace_instance

    # -- clusters ---------------------------------------------------------------------------------

    def create_cluster(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["name"]
        if not _NAME.fullmatch(name):
            raise ApiError(
                "InvalidParameterException", f"The name {name!r} is not a valid cluster name"
            )
        if name in self.clusters:
            raise ApiError("ResourceInUseException", f"Cluster already exists with name: {name}")
        if params.get("version", shapes.DEFAULT_VERSION) not in shapes.VERSIONS:
            raise ApiError(
                "InvalidParameterException", f"unsupported Kubernetes version {params['version']}"
            )
        vpc_id = self._network.vpc_of_cluster(params)
        cluster = self.clusters[name] = Cluster(
            described=shapes.new_cluster(params, emulation=self.emulation, vpc_id=vpc_id)
        )
        self._network.attach(cluster)
        self.emulation.clock.after(CLUSTER_CREATE_S, lambda: self._cluster_created(name, cluster))
        return {"cluster": cluster.described}

    def describe_cluster(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"cluster": self.cluster(params["name"]).described}

    def list_clusters(self, params: dict[str, Any]) -> dict[str, Any]:
        return paged("clusters", sorted(self.clusters), params)

    def delete_cluster(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start deleting a cluster that has no node groups."""
        name = params["name"]
        cluster = self.cluster(name)
        if cluster.node_groups:
            raise ApiError("ResourceInUseException", "Cluster has nodegroups attached")
        if cluster.described["status"] == "CREATING":
            raise ApiError("ResourceInUseException", f"Cluster has a creation in progress: {name}")
        if cluster.described["status"] != "DELETING":
            cluster.described["status"] = "DELETING"
            self.emulation.clock.after(CLUSTER_DELETE_S, lambda: self._cluster_gone(name))
        return {"cluster": cluster.described}

    def describe_cluster_versions(self, params: dict[str, Any]) -> dict[str, Any]:
        later = "extended-support-only" in self.emulation.faults
        return paged("clusterVersions", shapes.versions(later=later), params)

    # -- node groups ------------------------------------------------------------------------------

    def create_nodegroup(self, params: dict[str, Any]) -> dict[str, Any]:
        cluster = self._ready(params["clusterName"])
        name = params["nodegroupName"]
        if name in cluster.node_groups:
            raise ApiError(
                "ResourceInUseException",
                f"NodeGroup already exists with name {name} and cluster name "
                f"{params['clusterName']}",
            )
        launch = self._nodes.plan(cluster, params)
        described = shapes.new_node_group(
            params,
            emulation=self.emulation,
            version=cluster.described["version"],
            instance_type=launch.instance_type,
        )
        group = cluster.node_groups[name] = NodeGroup(described=described, launch=launch)
        self._nodes.try_to_launch(group)
        created_s = 3600.0 if group is self._nodes.late else NODE_GROUP_CREATE_S
        self.emulation.clock.after(created_s, lambda: self._group_created(group))
        return {"nodegroup": group.described}

    def describe_nodegroup(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"nodegroup": self._group(params).described}

    def list_nodegroups(self, params: dict[str, Any]) -> dict[str, Any]:
        names = sorted(self.cluster(params["clusterName"]).node_groups)
        return paged("nodegroups", names, params)

    def update_nodegroup_config(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start a change of size, which is all that can be changed here."""
        group = self._group(params)
        if group.described["status"] not in ("ACTIVE", "DEGRADED"):
            raise ApiError(
                "ResourceInUseException",
                f"Nodegroup cannot be updated as it is currently not in Active State: "
                f"{group.described['status']}",
            )
        if "scalingConfig" not in params:
            raise ApiError("InvalidParameterException", "only scalingConfig is emulated")
        group.described["scalingConfig"].update(params["scalingConfig"])
        group.described["modifiedAt"] = datetime.now(UTC)
        group.described["status"] = "UPDATING"
        self.emulation.clock.after(NODE_GROUP_UPDATE_S, lambda: self._group_resized(group))
        update = {"id": str(uuid.uuid4()), "status": "Successful", "createdAt": datetime.now(UTC)}
        return {"update": update}

    def delete_nodegroup(self, params: dict[str, Any]) -> dict[str, Any]:
        group = self._group(params)
        if group.described["status"] != "DELETING":
            group.described["status"] = "DELETING"
            self.emulation.clock.after(NODE_GROUP_DELETE_S, lambda: self._group_gone(group))
        return {"nodegroup": group.described}

    def replace_instance(self, instance_id: str) -> str | None:
        """Have an Auto Scaling group replace an instance: its name, None where it is in none."""
        groups = [each for held in self.clusters.values() for each in held.node_groups.values()]
        group = next((each for each in groups if instance_id in each.instance_ids), None)
        if group is None:
            return None
        self.emulation.clock.after(INSTANCE_END_S, lambda: self._instance_ended(group, instance_id))
        return self._nodes.begin_to_replace(group, instance_id)

    # -- lifecycle --------------------------------------------------------------------------------

    def _cluster_created(self, name: str, cluster: Cluster) -> None:
        if cluster.described["status"] != "CREATING":
            return
        if "cluster-fails" in self.emulation.faults:
            why = "The control plane could not be created"
            shapes.fail(cluster.described, "FAILED", shapes.issue("InternalFailure", why, name))
            return
        cluster.described["status"] = "ACTIVE"
        cluster.described["resourcesVpcConfig"]["clusterSecurityGroupId"] = cluster.group_id
        cluster.described["endpoint"] = self.emulation.kubernetes_endpoint
        cluster.described["certificateAuthority"] = {
            "data": base64.b64encode(b"local certificate authority").decode()
        }
        self.emulation.observer.cluster_active(name=name)

    def _cluster_gone(self, name: str) -> None:
        cluster = self.clusters.pop(name, None)
        if cluster is not None:
            self._network.detach(cluster)
            self.emulation.observer.cluster_deleted(name=name)

    def _group_created(self, group: NodeGroup) -> None:
        if group.described["status"] != "CREATING":
            return
        shortage = self._nodes.shortage(group)
        if shortage is not None and self._nodes.is_silent(group):
            return
        if shortage is not None:
            shapes.fail(group.described, "CREATE_FAILED", shortage)
            return
        self._launch(group)
        group.described["status"] = "ACTIVE"
        self._report_active(group)

    def _group_resized(self, group: NodeGroup) -> None:
        """Let new nodes join, or the newest go; those that stay are not touched."""
        if group.described["status"] != "UPDATING":
            return
        wanted, have = group.described["scalingConfig"]["desiredSize"], len(group.instance_ids)
        shortage = self._nodes.shortage(group, growing=True) if wanted > have else None
        if shortage is not None:
            shapes.fail(group.described, "DEGRADED", shortage)
            if "node-group-short" in self.emulation.faults:
                self._launch(group, leave_out=1)
                self._report_active(group)
            self._nodes.fail_to_launch(group, shortage["message"])
            return
        self._nodes.terminate(group, keep=wanted)
        self._launch(group)
        # EKS takes back what it said of a group's health only when the group has grown again, not
        # when it lacks no node any more: https://github.com/aws/containers-roadmap/issues/2326
        if wanted > have:
            group.described["health"] = {"issues": []}
        has_issues = bool(group.described["health"]["issues"])
        group.described["status"] = "DEGRADED" if has_issues else "ACTIVE"
        self._report_active(group)

    def _instance_ended(self, group: NodeGroup, instance_id: str) -> None:
        """Take the instance's node out, and let the group launch another instance."""
        if instance_id in group.instance_ids:
            self._nodes.end(group, [instance_id])
            self._report_active(group)
            self.emulation.clock.after(INSTANCE_LAUNCH_S, lambda: self._instance_launched(group))

    def _instance_launched(self, group: NodeGroup) -> None:
        if group.described["status"] not in ("ACTIVE", "DEGRADED"):
            return
        shortage = self._nodes.shortage(group, growing=True)
        if shortage is not None:
            self._nodes.fail_to_launch(group, shortage["message"])
            shapes.fail(group.described, "DEGRADED", shortage)
            return
        self._launch(group)
        self._report_active(group)

    def _report_active(self, group: NodeGroup) -> None:
        described = group.described
        self.emulation.observer.node_group_active(
            cluster=described["clusterName"],
            name=described["nodegroupName"],
            instance_type=group.launch.instance_type,
            instance_ids=list(group.instance_ids),
            zone=self._nodes.subnet(group).availability_zone,
            labels={
                **described["labels"],
                "eks.amazonaws.com/capacityType": described["capacityType"],
            },
            taints=list(described["taints"]),
        )

    def _group_gone(self, group: NodeGroup) -> None:
        name, cluster = group.described["nodegroupName"], group.described["clusterName"]
        self._nodes.terminate(group)
        if "node-group-delete-fails" in self.emulation.faults and not group.has_failed_to_go:
            group.has_failed_to_go = True
            # Source: https://github.com/hashicorp/terraform-provider-aws/issues/20405
            why = shapes.issue(
                "Ec2SecurityGroupDeletionFailure",
                "DependencyViolation - resource has a dependent object",
                self.clusters[cluster].group_id,
            )
            shapes.fail(group.described, "DELETE_FAILED", why)
        elif self.clusters[cluster].node_groups.pop(name, None) is not None:
            self.emulation.observer.node_group_deleted(cluster=cluster, name=name)

    def _launch(self, group: NodeGroup, *, leave_out: int = 0) -> None:
        """Run the instances that the group lacks."""
        wanted = group.described["scalingConfig"]["desiredSize"] - leave_out
        lacking = wanted - len(group.instance_ids)
        if lacking > 0:
            self._nodes.launch(group, lacking, subnet_id=self._nodes.subnet(group).id)

    # -- finding ----------------------------------------------------------------------------------

    def _group(self, params: dict[str, Any]) -> NodeGroup:
        found = self.cluster(params["clusterName"]).node_groups.get(params["nodegroupName"])
        if found is None:
            raise ApiError(
                "ResourceNotFoundException",
                f"No node group found for name: {params['nodegroupName']}.",
            )
        return found
