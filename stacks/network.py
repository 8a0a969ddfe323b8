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

# EKS places the control plane's interfaces in two zones at least. /18: EFA instances take up to 32
# interfaces each, and every pod takes an address.
NUM_ZONES: Final = 2
PRIVATE_MASK: Final = 18
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


class NetworkStack(cdk.Stack):
    """VPC, subnets, gateway endpoints and flow logs."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: StageConfig, **kwargs: Any
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr("10.0.0.0/16"),
            max_azs=NUM_ZONES,
            nat_gateways=config.num_nat_gateways,
            restrict_default_security_group=False,  # would deploy a function of its own to do it
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="Private",
                    subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS,
                    cidr_mask=PRIVATE_MASK,
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
        self._log_flows()

    @property
    def private_subnet_ids(self) -> tuple[str, ...]:
        """One private subnet a zone."""
        return tuple(subnet.subnet_id for subnet in self.vpc.private_subnets)

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
