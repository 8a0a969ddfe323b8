"""Whether EC2 offers the instance type of a start in a zone where nodes may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stationmaster.aws.account import Account
from stationmaster.preflight.findings import Finding, absent, present
from stationmaster.preflight.subject import Subject
from stationmaster.services import Services

NAME: Final = "instance-offers"


def applies(services: Services, subject: Subject) -> bool:
    """Wherever machines would be made."""
    return subject.machines is not None


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding."""
    assert subject.machines is not None
    name = subject.machines.instance.name
    offered = account.zones_offering(name)
    subnet_ids = services.settings.subnet_ids
    # Before a deployment there are no subnets, and any zone will do.
    zones = account.zones_of(subnet_ids) if subnet_ids else {zone: zone for zone in offered}
    return judge(name, zones=zones, offered=offered, region=account.region)


def judge(
    instance_type: str, *, zones: Mapping[str, str], offered: set[str], region: str
) -> list[Finding]:
    """Return the verdict; `zones` has the zone of each subnet that nodes may be in."""
    usable = sorted(offered & set(zones.values()))
    if usable:
        return present(NAME, f"{instance_type} is offered in {', '.join(usable)}")
    if offered:
        there = ", ".join(sorted(set(zones.values())))
        return absent(
            NAME,
            f"{instance_type} is offered in {', '.join(sorted(offered))} and not in "
            f"{there}, where nodes may be",
            "deploy with a subnet in one of its zones, or use another instance type",
        )
    return absent(
        NAME,
        f"{instance_type} is not offered in {region}",
        "use another instance type, or deploy in another region",
    )
