"""A network of a deployment's own: its zones, their room for addresses, its endpoints."""

from __future__ import annotations

import ipaddress
import itertools
import json
import re
from pathlib import Path

from infra_templates import Resource, Template, of_type, templates_of


def network(syntheses: Path, letters: str) -> dict[str, Resource]:
    """The resources of a network with the zones that have these letters."""
    template = json.loads((syntheses / "networks" / f"{letters}.template.json").read_text())
    resources: dict[str, Resource] = template["Resources"]
    return resources


def subnets(resources: dict[str, Resource], kind: str) -> dict[str, tuple[str, str]]:
    """Names and address ranges of the subnets of a kind, by the letter of their zone."""
    return {
        each["Properties"]["AvailabilityZone"][-1]: (name, each["Properties"]["CidrBlock"])
        for name, each in of_type(resources, "AWS::EC2::Subnet").items()
        if name.startswith(kind)
    }


def test_zones_come_and_go_without_a_change_of_the_others(syntheses: Path) -> None:
    whole = network(syntheses, "abcdef")

    for kind in ("Private", "Public"):
        slots = subnets(whole, kind)
        assert list(slots) == list("abcdef")
        for letters in ("bd", "abc"):
            fewer = subnets(network(syntheses, letters), kind)
            assert fewer == {letter: slots[letter] for letter in letters}
    ranges = [
        ipaddress.IPv4Network(each["Properties"]["CidrBlock"])
        for each in of_type(whole, "AWS::EC2::Subnet").values()
    ]
    assert not [pair for pair in itertools.combinations(ranges, 2) if pair[0].overlaps(pair[1])]


def test_nothing_that_may_be_taken_out_again_is_exported(
    templates: dict[str, Template], syntheses: Path
) -> None:
    """An export that another stack imports cannot go: the stack that has it is updated first."""
    for stack in (*templates_of(syntheses / "existing").values(), *templates.values()):
        text = json.dumps(stack)
        assert "stationmaster-images:Exports" not in text
        assert not re.search(r"stationmaster-network:Exports\w*(Private|Public)", text)


def test_network_reaches_named_services_by_endpoints(syntheses: Path) -> None:
    made = network(syntheses, "bd")

    endpoints = of_type(made, "AWS::EC2::VPCEndpoint").values()
    interfaces = [each["Properties"] for each in endpoints]
    names = {
        str(each["ServiceName"]).rpartition(".")[2].strip("']} ")
        for each in interfaces
        if each["VpcEndpointType"] == "Interface"
    }
    assert names == {"api", "sts"}
    assert all(each["PrivateDnsEnabled"] for each in interfaces if "SubnetIds" in each)
