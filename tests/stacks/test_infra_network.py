"""A network of a deployment's own: its zones, their room for addresses, its endpoints."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest
from infra_templates import Resource, of_type


def subnets(resources: dict[str, Resource], kind: str) -> dict[str, ipaddress.IPv4Network]:
    """Address ranges of the subnets of a kind, by zone."""
    return {
        each["Properties"]["AvailabilityZone"]: ipaddress.IPv4Network(
            each["Properties"]["CidrBlock"]
        )
        for each in of_type(resources, "AWS::EC2::Subnet").values()
        if {"Key": "aws-cdk:subnet-name", "Value": kind} in each["Properties"]["Tags"]
    }


@pytest.mark.parametrize(("letters", "mask"), [("bd", 18), ("abc", 18), ("abcdef", 19)])
def test_network_has_the_zones_that_are_named(letters: str, mask: int, syntheses: Path) -> None:
    zones = [f"us-west-2{letter}" for letter in letters]

    template = json.loads((syntheses / "networks" / f"{letters}.template.json").read_text())
    made = template["Resources"]

    private, public = subnets(made, "Private"), subnets(made, "Public")
    assert list(private) == list(public) == zones
    assert {each.prefixlen for each in private.values()} == {mask}
    endpoints = of_type(made, "AWS::EC2::VPCEndpoint").values()
    interfaces = [each["Properties"] for each in endpoints]
    names = {
        str(each["ServiceName"]).rpartition(".")[2].strip("']} ")
        for each in interfaces
        if each["VpcEndpointType"] == "Interface"
    }
    assert names == {"api", "sts"}
    assert all(each["PrivateDnsEnabled"] for each in interfaces if "SubnetIds" in each)
