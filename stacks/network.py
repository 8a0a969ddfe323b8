"""The network that runs live in: private subnets with a way out, and no more.

Clusters, nodes and file systems come and go in its subnets, and are in no stack.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.config import StageConfig

# EKS places the control plane's interfaces in two zones at least, and a stack that knows no region
# can name no more than its first two.
NUM_ZONES: Final = 2
ADDRESSES: Final = "10.0.0.0/16"
# A zone's subnets have the names and the addresses of its letter, whatever other zones there are,
# so zones come and go one by one. Each has a /19 of its own, because every pod takes an address;
# the public subnets share the seventh.
LETTERS: Final = "abcdef"
_SLOTS: Final = tuple(ipaddress.IPv4Network(ADDRESSES).subnets(new_prefix=19))
_PUBLIC: Final = tuple(_SLOTS[len(LETTERS)].subnets(new_prefix=24))


@dataclass(frozen=True)
class Network:
    """The network and private subnets, by id, where clusters and file systems are made."""

    vpc_id: str
    subnet_ids: tuple[str, ...]


def network_of(app: Construct, construct_id: str, *, config: StageConfig) -> Network:
    """Return the network that the configuration names; without one, that of a stack of its own.

    Nothing is looked up: only AWS knows whether the subnets are in two zones.
    """
    if config.vpc_id:
        return Network(config.vpc_id, config.subnet_ids)
    stack = NetworkStack(app, construct_id, config=config)
    # Read at deployment, not exported: an export that another stack imports can never go.
    for subnet in stack.private:
        cdk.CrossStackReferences.of(subnet).produce(cdk.ReferenceStrength.WEAK)
    return Network(stack.vpc.vpc_id, tuple(subnet.subnet_id for subnet in stack.private))


def functions_group(scope: Construct, construct_id: str, *, vpc_id: str) -> ec2.CfnSecurityGroup:
    """Make the group of functions and control planes: members reach each other's port 443."""
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
            nat_gateways=0,
            subnet_configuration=[],  # which would number subnets and their addresses by position
            restrict_default_security_group=False,  # would deploy a function of its own to do it
        )
        zones = dict(
            zip(LETTERS, self.availability_zones[:NUM_ZONES], strict=False)
            if not config.zones
            else ((zone[-1], zone) for zone in config.zones)
        )
        self.private = [self._private(letter, zone) for letter, zone in zones.items()]
        self._add_ways_out(zones, config.num_nat_gateways)
        # Image layers and data sets come from S3: through a gateway they cost no NAT traffic.
        for name, service in (
            ("S3", ec2.GatewayVpcEndpointAwsService.S3),
            ("DynamoDb", ec2.GatewayVpcEndpointAwsService.DYNAMODB),
        ):
            self.vpc.add_gateway_endpoint(
                name, service=service, subnets=[ec2.SubnetSelection(subnets=self.private)]
            )
        if config.interface_endpoints:
            self._add_interface_endpoints(config.interface_endpoints)
        self._log_flows()

    def _private(self, letter: str, zone: str) -> ec2.PrivateSubnet:
        subnet = ec2.PrivateSubnet(
            self,
            f"Private{letter.upper()}",
            vpc_id=self.vpc.vpc_id,
            availability_zone=zone,
            cidr_block=str(_SLOTS[LETTERS.index(letter)]),
            map_public_ip_on_launch=False,
        )
        cdk.Tags.of(subnet).add("kubernetes.io/role/internal-elb", "1")
        return subnet

    def _add_ways_out(self, zones: Mapping[str, str], num_nat_gateways: int) -> None:
        """Add a public subnet a zone, and NAT gateways in the first of them."""
        internet = ec2.CfnInternetGateway(self, "Internet")
        attachment = ec2.CfnVPCGatewayAttachment(
            self, "Attachment", vpc_id=self.vpc.vpc_id, internet_gateway_id=internet.ref
        )
        nat_ids: list[str] = []
        for letter, zone in zones.items():
            public = ec2.PublicSubnet(
                self,
                f"Public{letter.upper()}",
                vpc_id=self.vpc.vpc_id,
                availability_zone=zone,
                cidr_block=str(_PUBLIC[LETTERS.index(letter)]),
                map_public_ip_on_launch=False,
            )
            public.add_default_internet_route(internet.ref, attachment)
            if len(nat_ids) < num_nat_gateways:
                nat_ids.append(public.add_nat_gateway().ref)
        for index, private in enumerate(self.private):
            private.add_default_nat_route(nat_ids[index % len(nat_ids)])

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
                subnets=ec2.SubnetSelection(subnets=self.private),
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
