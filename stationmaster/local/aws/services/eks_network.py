"""What an EKS cluster has in its network: EKS checks the subnets and groups, and adds its own.

For each cluster EKS makes a security group, and interfaces of the control plane in the given
subnets. It deletes both with the cluster; a group that something else is still in stays. Source:
EKS user guide, "View Amazon EKS security group requirements for clusters", and
https://github.com/aws/aws-k8s-tester/pull/416
"""

from __future__ import annotations

import uuid
from typing import Any

from moto.ec2.exceptions import DependencyViolationError
from moto.ec2.models import ec2_backends

from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.services.eks_records import Cluster
from stationmaster.local.aws.wire import ApiError


class EksNetwork:
    """Subnets, security groups and interfaces as EKS looks at them and makes them."""

    def __init__(self, emulation: Emulation) -> None:
        self._emulation = emulation

    def vpc_of_cluster(self, params: dict[str, Any]) -> str:
        """Check the network of a cluster that is asked for; its VPC.

        Raises:
            ApiError: a subnet or group does not exist, they are in several VPCs, or in one zone.
        """
        name, config = params["name"], params["resourcesVpcConfig"]
        subnets = self.subnets(config.get("subnetIds", []))
        vpcs = {str(subnet.vpc_id) for subnet in subnets}
        if len(vpcs) > 1:
            raise ApiError(
                "InvalidParameterException", "Subnets specified must belong to the same VPC"
            )
        if len({subnet.availability_zone for subnet in subnets}) < 2:
            raise ApiError(
                "InvalidParameterException",
                "Subnets specified must be in at least two different AZs",
            )
        (vpc_id,) = vpcs
        self._check_zones(name, [subnet.availability_zone for subnet in subnets])
        self._check_groups(config.get("securityGroupIds", []))
        return vpc_id

    def _check_zones(self, name: str, zones: list[str]) -> None:
        """Refuse the first zone, where the fault "unsupported-zone" is on.

        Source: https://github.com/eksctl-io/eksctl/issues/817
        """
        full = f"{self._emulation.region}a"
        if "unsupported-zone" not in self._emulation.faults or full not in zones:
            return
        valid = [f"{self._emulation.region}{letter}" for letter in "bcd"]
        raise ApiError(
            "UnsupportedAvailabilityZoneException",
            f"Cannot create cluster '{name}' because {full}, the targeted availability zone, does "
            "not currently have sufficient capacity to support the cluster. Retry and choose from "
            f"these availability zones: {', '.join(valid)}",
        )

    def subnets(self, subnet_ids: list[str], *, of_vpc: str = "") -> list[Any]:
        """EC2's records of the subnets, in their order.

        Raises:
            ApiError: one does not exist, none is given, or one is in another VPC than `of_vpc`.
        """
        known = {
            subnet.id: subnet
            for subnets in list(self.ec2.subnets.values())
            for subnet in list(subnets.values())
        }
        missing = [subnet for subnet in subnet_ids if subnet not in known]
        if missing or not subnet_ids:
            raise ApiError(
                "InvalidParameterException",
                f"The subnet ID '{', '.join(missing) or 'none given'}' does not exist",
            )
        found = [known[subnet] for subnet in subnet_ids]
        if of_vpc and any(subnet.vpc_id != of_vpc for subnet in found):
            # Source: https://github.com/rancher/rancher/issues/28144
            raise ApiError(
                "InvalidParameterException",
                f"Specified subnets must belong to cluster's vpc {of_vpc}",
            )
        return found

    def _check_groups(self, group_ids: list[str]) -> None:
        """Refuse security groups that do not exist, or are not known yet."""
        missing = [each for each in group_ids if self.group(each, asks="CreateCluster") is None]
        if missing:
            raise ApiError(
                "InvalidParameterException",
                f"The security group '{', '.join(missing)}' does not exist",
            )

    def group(self, group_id: str, *, asks: str) -> Any:
        """EC2's record of a security group; None where the operation `asks` knows none."""
        if self._emulation.first_calls.is_unknown(group_id, to=asks):
            return None
        return self.ec2.get_security_group_from_id(group_id)

    def attach(self, cluster: Cluster) -> None:
        """Make EKS's own security group, and the control plane's interfaces."""
        described = cluster.described
        name, config = described["name"], described["resourcesVpcConfig"]
        with self._emulation.locks["ec2"]:
            group = self.ec2.create_security_group(
                f"eks-cluster-sg-{name}-{uuid.uuid4().int % 10**9}",
                "EKS created security group applied to ENI that is attached to EKS Control Plane "
                "master nodes, as well as any managed workloads.",
                vpc_id=config["vpcId"],
                tags={
                    "Name": f"eks-cluster-sg-{name}",
                    "aws:eks:cluster-name": name,
                    f"kubernetes.io/cluster/{name}": "owned",
                },
            )
            cluster.group_id = str(group.id)
            # Nobody hears of it before the cluster is active, minutes later.
            self._emulation.first_calls.settle(cluster.group_id)
            itself = [{"GroupId": group.id}]
            self.ec2.authorize_security_group_ingress(group.id, "-1", None, None, [], None, itself)
            for subnet_id in config["subnetIds"][:2]:
                interface = self.ec2.create_network_interface(
                    self.ec2.get_subnet(subnet_id),
                    None,
                    group_ids=[group.id, *config["securityGroupIds"]],
                    description=f"Amazon EKS {name}",
                )
                interface.status = "in-use"
                cluster.interface_ids.append(str(interface.id))

    def detach(self, cluster: Cluster) -> None:
        """Delete what `attach` made; a group that something is in is left behind."""
        with self._emulation.locks["ec2"]:
            for interface_id in cluster.interface_ids:
                self.ec2.enis.pop(interface_id, None)
            if self.ec2.get_security_group_from_id(cluster.group_id) is None:
                return  # somebody was faster
            try:
                self.ec2.delete_security_group(group_id=cluster.group_id)
            except DependencyViolationError:
                return

    @property
    def ec2(self) -> Any:
        """moto's EC2 of the account."""
        return ec2_backends[self._emulation.account_id][self._emulation.region]
