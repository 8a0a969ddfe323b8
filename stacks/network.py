"""The network that runs live in: private subnets with a way out, and no more.

Nothing of a run is in this stack: clusters, nodes and file systems come and go in its subnets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.config import StageConfig

# EKS places the control plane's interfaces in two zones at least, and a stack that knows no region
# can name no more than its first two. /18: EFA instances take up to 32 interfaces each, and every
# pod takes an address; six zones leave /19 for each.
NUM_ZONES: Final = 2
ADDRESSES: Final = "10.0.0.0/16"
PRIVATE_MASK: Final = 18
PRIVATE_MASK_OF_MANY: Final = 19  # from the fourth zone on
PUBLIC_MASK: Final = 24


@dataclass(frozen=True)
class Network:
    """Where clusters and file systems are made: a network and its private subnets, by id."""

    vpc_id: str
    subnet_ids: tuple[str, ...]


def network_of(app: Construct, construct_id: str, *, config: StageConfig) -> Network:
    """The network that the configuration names; without one, that of a stack of its own.

    Nothing is looked up: whether the subnets are in two zones is known to AWS alone.
    """
    if config.vpc_id:
        return Network(config.vpc_id, config.subnet_ids)
    stack = NetworkStack(app, construct_id, config=config)
    return Network(stack.vpc.vpc_id, stack.private_subnet_ids)


def functions_group(scope: Construct, construct_id: str, *, vpc_id: str) -> ec2.CfnSecurityGroup:
    """The group that functions and control planes share: members reach each other's port 443."""
    group = ec2.CfnSecurityGroup(
        scope,
        construct_id,
        group_description="Functions of Stationmaster and the Kubernetes APIs that they call",
        vpc_id=vpc_id,
        security_group_egress=[
            ec2.CfnSecurityGroup.EgressProperty(
                ip_protocol="tcp", from_port=443, to_port=443, cidr_ip="0.0.0.0/0"
            )
        ],
    )
    ec2.CfnSecurityGroupIngress(
        scope,
        f"{construct_id}Members",
        group_id=group.attr_group_id,
        source_security_group_id=group.attr_group_id,
        ip_protocol="tcp",
        from_port=443,
        to_port=443,
    )
    return group


class NetworkStack(cdk.Stack):
    """VPC, subnets, gateway endpoints and flow logs."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: StageConfig, **kwargs: Any
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(ADDRESSES),
            max_azs=None if config.zones else NUM_ZONES,
            availability_zones=list(config.zones) or None,
            nat_gateways=config.num_nat_gateways,
            restrict_default_security_group=False,  # would deploy a function of its own to do it
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="Private",
                    subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS,
                    cidr_mask=PRIVATE_MASK if len(config.zones) <= 3 else PRIVATE_MASK_OF_MANY,
                ),
                ec2.SubnetConfiguration(
                    name="Public",
                    subnet_type=ec2.SubnetType.PUBLIC,
                    cidr_mask=PUBLIC_MASK,
                    map_public_ip_on_launch=False,
                ),
            ],
            # Image layers and data sets come from S3: through a gateway they cost no NAT traffic.
            gateway_endpoints={
                "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3),
                "DynamoDb": ec2.GatewayVpcEndpointOptions(
                    service=ec2.GatewayVpcEndpointAwsService.DYNAMODB
                ),
            },
        )
        for subnet in self.vpc.private_subnets:
            cdk.Tags.of(subnet).add("kubernetes.io/role/internal-elb", "1")
        if config.interface_endpoints:
            self._add_interface_endpoints(config.interface_endpoints)
        self._log_flows()

    @property
    def private_subnet_ids(self) -> tuple[str, ...]:
        """One private subnet a zone."""
        return tuple(subnet.subnet_id for subnet in self.vpc.private_subnets)

    def _add_interface_endpoints(self, services: tuple[str, ...]) -> None:
        group = ec2.SecurityGroup(
            self,
            "EndpointsGroup",
            vpc=self.vpc,
            description="AWS services, as this network reaches them",
            allow_all_outbound=False,
        )
        group.add_ingress_rule(ec2.Peer.ipv4(ADDRESSES), ec2.Port.tcp(443), "from the network")
        for service in services:
            self.vpc.add_interface_endpoint(
                service.title().replace(".", "").replace("-", ""),
                service=ec2.InterfaceVpcEndpointAwsService(service),
                security_groups=[group],
                open=False,
            )

    def _log_flows(self) -> None:
        log_group = logs.LogGroup(
            self,
            "FlowLogs",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        self.vpc.add_flow_log(
            "Flow",
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(log_group),
            traffic_type=ec2.FlowLogTrafficType.REJECT,
        )
