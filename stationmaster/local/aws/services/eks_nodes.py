"""The instances of EKS's node groups, as EC2 has them: launched as their template says.

Instances, volumes and interfaces carry the tags of the template, not those of the node group, and
are in its security groups and placement group. Source: EKS user guide, "Tag your resources".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.moto_patches.capacity_reservations import why_refused
from stationmaster.local.aws.services import eks_shapes as shapes
from stationmaster.local.aws.services.eks_network import EksNetwork
from stationmaster.local.aws.services.eks_records import Cluster, Launch, NodeGroup
from stationmaster.local.aws.services.eks_templates import launch_of, read_template, unfit

# Amazon Linux image id that moto ships; the emulated instances only need one that exists.
_IMAGE: Final = "ami-12c6146b"

# Emulated seconds from one attempt of an Auto Scaling group to launch instances to the next.
ATTEMPT_S: Final = 45.0
_ATTEMPTS: Final = 3  # as many as anybody looks at
SILENT: Final = "launches-fail-silently"

# What EC2 says of an instance that is not on demand.
_LIFECYCLES: Final = {"SPOT": "spot", "CAPACITY_BLOCK": "capacity-block"}
# The faults that say why instances cannot be launched.
_SHORTAGES: Final = frozenset({"no-capacity", "no-capacity-in-first-zone", "vcpu-quota"})


def _is_rare(group: NodeGroup) -> bool:
    return bool(group.described.get("taints"))


def _scaling_group(group: NodeGroup) -> str:
    return str(group.described["resources"]["autoScalingGroups"][0]["name"])


class Nodes:
    """Launches and ends the instances of node groups."""

    def __init__(self, emulation: Emulation, network: EksNetwork) -> None:
        self._emulation = emulation
        self._network = network
        self.late: NodeGroup | None = None  # the group for which capacity comes late

    def plan(self, cluster: Cluster, params: dict[str, Any]) -> Launch:
        """Return what a node group that is asked for is to be launched with.

        Raises:
            ApiError: its subnets or its launch template are refused.
        """
        vpc_id = cluster.described["resourcesVpcConfig"]["vpcId"]
        self._network.subnets(params["subnets"], of_vpc=vpc_id)
        data = read_template(params, ec2=self._ec2, first_calls=self._emulation.first_calls)
        launch = launch_of(params, data, default_group_id=cluster.group_id)
        wanted = [
            *launch.group_ids,
            *(group for each in launch.interfaces for group in each.get("Groups") or ()),
        ]
        for group_id in dict.fromkeys(wanted):
            if self._network.group(group_id, asks="CreateNodegroup") is None:
                raise unfit(f"The security group '{group_id}' does not exist")
        known = self._ec2.__dict__.get("placement_groups", {})
        if launch.placement_group and launch.placement_group not in known:
            raise unfit(f"The Placement Group '{launch.placement_group}' is unknown.")
        return launch

    def subnet(self, group: NodeGroup) -> Any:
        """Return the subnet of its instances: the first in whose zone there are some."""
        subnets = self._network.subnets(group.described["subnets"])
        return next((each for each in subnets if self._has_capacity(group, each)), subnets[0])

    def shortage(self, group: NodeGroup, *, growing: bool = False) -> dict[str, Any] | None:
        """Return the health issue of a group for which AWS launches too few instances, if any.

        Machines are rare that train: those of groups with a taint.
        """
        faults, described = self._emulation.faults, group.described
        is_rare = _is_rare(group)
        if group.launch.reservation_id:
            refused = self._refused_by_reservation(group)
            return shapes.not_launched(described, refused) if refused else None
        if is_rare and "vcpu-quota" in faults:
            return shapes.quota_reached(described)
        subnet = self.subnet(group)
        if (
            "node-group-fails" in faults
            or (growing and "node-group-short" in faults)
            or (is_rare and "no-capacity" in faults)
            or not self._has_capacity(group, subnet)
        ):
            return shapes.no_capacity(described, zone=subnet.availability_zone)
        if self.is_silent(group) and not faults & _SHORTAGES:
            # Instances end while they start.
            # Source: EC2 Auto Scaling user guide, "EC2 instance launch failures".
            return shapes.not_launched(described, "Client.InternalError: Client error on launch.")
        return None

    def is_silent(self, group: NodeGroup) -> bool:
        """Say whether EKS does not say that the group's instances cannot be launched."""
        return SILENT in self._emulation.faults and _is_rare(group)

    def try_to_launch(self, group: NodeGroup, *, attempt: int = 1) -> None:
        """Let the Auto Scaling group of a new node group fail in time, where it cannot launch."""
        if self.late is None and "capacity-late" in self._emulation.faults and _is_rare(group):
            self.late = group
        self._emulation.clock.after(ATTEMPT_S, lambda: self._attempt(group, attempt))

    def fail_to_launch(self, group: NodeGroup, why: str) -> None:
        """Record that an instance could not be launched."""
        self._emulation.scaling_activities.failed(
            _scaling_group(group), why, at=datetime.now(UTC), subnet=self.subnet(group)
        )

    def _attempt(self, group: NodeGroup, attempt: int) -> None:
        shortage = self.shortage(group)
        if group is self.late:
            zone = self.subnet(group).availability_zone
            shortage = shapes.no_capacity(group.described, zone=zone)
        if shortage is None or group.described["status"] != "CREATING":
            return
        self._emulation.scaling_activities.failed(
            _scaling_group(group),
            shortage["message"],
            at=group.described["createdAt"] + timedelta(seconds=attempt * ATTEMPT_S),
            subnet=self.subnet(group),
        )
        if attempt < _ATTEMPTS:
            self.try_to_launch(group, attempt=attempt + 1)

    def _refused_by_reservation(self, group: NodeGroup) -> str:
        lacking = group.described["scalingConfig"]["desiredSize"] - len(group.instance_ids)
        return why_refused(
            self._ec2,
            group.launch.reservation_id,
            instance_type=group.launch.instance_type,
            zone=self.subnet(group).availability_zone,
            count=lacking,
            is_block=group.launch.capacity_type == "CAPACITY_BLOCK",
        )

    def _has_capacity(self, group: NodeGroup, subnet: Any) -> bool:
        first = f"{self._emulation.region}a"
        is_full = "no-capacity-in-first-zone" in self._emulation.faults
        return not (is_full and _is_rare(group) and subnet.availability_zone == first)

    def launch(self, group: NodeGroup, count: int, *, subnet_id: str) -> None:
        """Run `count` more instances in the emulated EC2, tagged as their template and EKS say."""
        launch, described = group.launch, group.described
        cluster = described["clusterName"]
        own = {
            "eks:cluster-name": cluster,
            "eks:nodegroup-name": described["nodegroupName"],
            f"kubernetes.io/cluster/{cluster}": "owned",
        }
        arguments: dict[str, Any] = {}
        if launch.volumes:
            arguments["block_device_mappings"] = list(launch.volumes)
        with self._emulation.locks["ec2"]:
            reservation = self._ec2.run_instances(
                _IMAGE,
                count,
                None,
                [],
                instance_type=launch.instance_type,
                is_instance_type_default=False,
                subnet_id=subnet_id,
                region_name=self._emulation.region,
                security_group_ids=list(launch.group_ids),
                nics=[{**each, "SubnetId": subnet_id} for each in launch.interfaces],
                tags={
                    "instance": {**launch.tags.get("instance", {}), **own},
                    "volume": launch.tags.get("volume", {}),
                },
                **arguments,
            )
            for instance in reservation.instances:
                instance.placement.group_name = launch.placement_group
                instance.capacity_reservation_id = launch.reservation_id
                instance.lifecycle = _LIFECYCLES.get(launch.capacity_type)
                self._dress_interfaces(instance.id, launch)
                self._emulation.scaling_activities.launched(
                    _scaling_group(group),
                    instance.id,
                    at=datetime.now(UTC),
                    subnet=self._network.subnets([subnet_id])[0],
                )
        group.instance_ids += [instance.id for instance in reservation.instances]

    def begin_to_replace(self, group: NodeGroup, instance_id: str) -> str:
        """Let the group's Auto Scaling group end an instance: its name."""
        name = _scaling_group(group)
        self._emulation.scaling_activities.terminated(
            name, instance_id, at=datetime.now(UTC), subnet=self.subnet(group)
        )
        return name

    def terminate(self, group: NodeGroup, *, keep: int = 0) -> None:
        """End all instances but the first `keep`."""
        self.end(group, group.instance_ids[keep:])

    def end(self, group: NodeGroup, going: Sequence[str]) -> None:
        """End some instances of a group."""
        if going:
            with self._emulation.locks["ec2"]:
                if "interfaces-left" in self._emulation.faults:
                    for instance in self._ec2.get_multi_instances_by_id(going):
                        self._leave_interface(group, instance)
                self._ec2.terminate_instances(list(going))
            group.instance_ids = [each for each in group.instance_ids if each not in going]

    def _leave_interface(self, group: NodeGroup, instance: Any) -> None:
        """Leave what a CNI leaves whose node is terminated between detaching and deleting.

        Source: https://github.com/aws/amazon-vpc-cni-k8s/issues/1223
        """
        held = instance.nics[0]
        left = self._ec2.create_network_interface(
            held.subnet,
            None,
            group_ids=[each.id for each in held.group_set],
            description=f"aws-K8S-{instance.id}",
            tags={
                "cluster.k8s.amazonaws.com/name": group.described["clusterName"],
                "node.k8s.amazonaws.com/instance_id": instance.id,
            },
        )
        left.status = "available"

    def _dress_interfaces(self, instance_id: str, launch: Launch) -> None:
        """Give an instance's interfaces their types and tags."""
        mine = [
            interface
            for interface in self._ec2.enis.values()
            if interface.instance is not None and interface.instance.id == instance_id
        ]
        for interface, asked in zip(mine, launch.interfaces or ({},), strict=True):
            interface.interface_type = asked.get("InterfaceType") or "interface"
            interface.add_tags(launch.tags.get("network-interface", {}))

    @property
    def _ec2(self) -> Any:
        return self._network.ec2
