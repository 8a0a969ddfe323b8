"""Whether the account may run the machines of a start: its vCPU quotas, less what runs."""

from __future__ import annotations

from typing import Final

from stationmaster.aws.account import Account
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.quotas import SERVICE_CODE, VcpuQuota, quota_of
from stationmaster.domain.names import SYSTEM_INSTANCE_TYPE
from stationmaster.preflight.findings import Finding, Severity
from stationmaster.preflight.subject import Machines, Subject
from stationmaster.services import Services

NAME: Final = "vcpu-quota"


def applies(services: Services, subject: Subject) -> bool:
    """Wherever machines would be made."""
    return subject.machines is not None


def look(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each quota that the start counts towards."""
    assert subject.machines is not None
    found = []
    for quota, (least, most) in needed_vcpus(subject.machines).items():
        if quota is None:
            name = subject.machines.instance.name
            found.append(
                Finding(
                    check=NAME,
                    severity=Severity.WARNING,
                    message=f"the quota that {name} counts towards is not known here",
                    remedy="look for its family in the console of Service Quotas, under EC2",
                )
            )
            continue
        limit, used = account.quota(SERVICE_CODE, quota.code), account.vcpus_in_use(quota)
        found.append(
            judge(quota, limit=limit, used=used, least=least, most=most, region=account.region)
        )
    return found


def needed_vcpus(machines: Machines) -> dict[VcpuQuota | None, tuple[int, int]]:
    """Return the least and most vCPUs that a start takes of each quota, system node included.

    What is reserved was counted when it was reserved. Spot instances have quotas of their own.
    """
    system = get_instance(SYSTEM_INSTANCE_TYPE)
    needed: dict[VcpuQuota | None, tuple[int, int]] = {
        quota_of(system.name): (system.vcpus, system.vcpus)
    }
    if machines.reservation_id:
        return needed
    quota = quota_of(machines.instance.name, is_spot=machines.is_spot)
    least, most = needed.get(quota, (0, 0))
    vcpus = machines.instance.vcpus
    needed[quota] = (least + machines.least_nodes * vcpus, most + machines.nodes * vcpus)
    return needed


def judge(
    quota: VcpuQuota, *, limit: int, used: int, least: int, most: int, region: str
) -> Finding:
    """Return the verdict on one quota: an error below `least` vCPUs, a warning below `most`."""
    free = limit - used
    said = f'"{quota.name}" allows {limit:,} vCPUs in {region} and {used:,} run'
    if free >= most:
        return Finding(check=NAME, severity=Severity.INFO, message=f"{said}; {most:,} are needed")
    wanted = used + most
    ask = (
        f"ask for {wanted:,}: aws service-quotas request-service-quota-increase --service-code "
        f"{SERVICE_CODE} --quota-code {quota.code} --desired-value {wanted} --region {region}"
    )
    if free >= least:
        return Finding(
            check=NAME,
            severity=Severity.WARNING,
            message=f"{said}, so not all nodes can come: {most:,} vCPUs are wished for",
            remedy=ask,
        )
    return Finding(
        check=NAME,
        severity=Severity.ERROR,
        message=f"{said}; the start needs {least:,} more",
        remedy=f"{ask}; or use fewer nodes",
    )
