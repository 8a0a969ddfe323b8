"""What machines need: quotas, offers, a Kubernetes version, a reservation, built images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stationmaster.aws.account import Account
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.kubernetes_versions import (
    OfferedVersion,
    Support,
    choose_version,
    unfit,
)
from stationmaster.domain.catalogue.quotas import SERVICE_CODE, VcpuQuota, quota_of
from stationmaster.domain.cluster.spec import Window
from stationmaster.domain.durations import moment
from stationmaster.domain.errors import BadParameter, NotPossibleNow, PermanentError
from stationmaster.domain.names import SYSTEM_INSTANCE_TYPE
from stationmaster.preflight.findings import Check, Finding, Severity, absent, present
from stationmaster.preflight.subject import DEPLOYMENT, Machines, Subject
from stationmaster.services import Services

_QUOTA: Final = "vcpu-quota"
_OFFERS: Final = "instance-offers"
_VERSION: Final = "kubernetes-version"
_RESERVATION: Final = "reservation"
_BUILDS: Final = "image-builds"
_VERSION_SETTING: Final = "kubernetes_version in cdk.json"
_BUILDS_SERVICE: Final = "codebuild"
# A new account has a quota of 0 for some machines.
# Source: Service Quotas, "Concurrently running builds for Linux/... environment".
_BUILDS_QUOTAS: Final = {
    "L-4DDC4A99": ("Linux/Large", "without more_images in cdk.json"),
    "L-0397D009": ("Linux/2XLarge", "with more_images in cdk.json"),
}


def _look_at_quotas(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each vCPU quota that the start counts towards, less what runs."""
    assert subject.machines is not None
    found = []
    for quota, (least, most) in needed_vcpus(subject.machines).items():
        if quota is None:
            name = subject.machines.instance.name
            found.append(
                Finding(
                    check=_QUOTA,
                    severity=Severity.WARNING,
                    message=f"the quota that {name} counts towards is not known here",
                    remedy="look for its family in the console of Service Quotas, under EC2",
                )
            )
            continue
        limit, used = account.quota(SERVICE_CODE, quota.code), account.vcpus_in_use(quota)
        found.append(
            judge_quota(
                quota, limit=limit, used=used, least=least, most=most, region=account.region
            )
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


def judge_quota(
    quota: VcpuQuota, *, limit: int, used: int, least: int, most: int, region: str
) -> Finding:
    """Return the verdict on one quota: an error below `least` vCPUs, a warning below `most`."""
    free = limit - used
    said = f'"{quota.name}" allows {limit:,} vCPUs in {region} and {used:,} run'
    if free >= most:
        return Finding(check=_QUOTA, severity=Severity.INFO, message=f"{said}; {most:,} are needed")
    wanted = used + most
    ask = (
        f"ask for {wanted:,}: aws service-quotas request-service-quota-increase --service-code "
        f"{SERVICE_CODE} --quota-code {quota.code} --desired-value {wanted} --region {region}"
    )
    if free >= least:
        return Finding(
            check=_QUOTA,
            severity=Severity.WARNING,
            message=f"{said}, so not all nodes can come: {most:,} vCPUs are wished for",
            remedy=ask,
        )
    return Finding(
        check=_QUOTA,
        severity=Severity.ERROR,
        message=f"{said}; the start needs {least:,} more",
        remedy=f"{ask}; or use fewer nodes",
    )


def _look_at_offers(services: Services, account: Account, subject: Subject) -> list[Finding]:
    assert subject.machines is not None
    name = subject.machines.instance.name
    offered = account.zones_offering(name)
    subnet_ids = services.settings.subnet_ids
    # Before a deployment there are no subnets, and any zone will do.
    zones = account.zones_of(subnet_ids) if subnet_ids else {zone: zone for zone in offered}
    return judge_offer(name, zones=zones, offered=offered, region=account.region)


def judge_offer(
    instance_type: str, *, zones: Mapping[str, str], offered: set[str], region: str
) -> list[Finding]:
    """Return the verdict; `zones` has the zone of each subnet that nodes may be in."""
    usable = sorted(offered & set(zones.values()))
    if usable:
        return present(_OFFERS, f"{instance_type} is offered in {', '.join(usable)}")
    if offered:
        there = ", ".join(sorted(set(zones.values())))
        return absent(
            _OFFERS,
            f"{instance_type} is offered in {', '.join(sorted(offered))} and not in "
            f"{there}, where nodes may be",
            "deploy with a subnet in one of its zones, or use another instance type",
        )
    return absent(
        _OFFERS,
        f"{instance_type} is not offered in {region}",
        "use another instance type, or deploy in another region",
    )


def _look_at_versions(services: Services, account: Account, subject: Subject) -> list[Finding]:
    wanted = services.settings.kubernetes_version
    return [judge_version(account.kubernetes_versions(), wanted=wanted)]


def judge_version(offered: Sequence[OfferedVersion], *, wanted: str) -> Finding:
    """Judge what EKS offers and the deployment has set; `wanted` is "" for nothing."""
    try:
        chosen = choose_version(offered, wanted=wanted)
    except PermanentError as error:
        message, _, remedy = str(error).partition("; ")
        return Finding(check=_VERSION, severity=Severity.ERROR, message=message, remedy=remedy)
    doubt = unfit(chosen, wanted=wanted)
    if not doubt:
        said = f"a new cluster gets Kubernetes {chosen.version}, which is in standard support"
        return Finding(check=_VERSION, severity=Severity.INFO, message=said)
    return Finding(
        check=_VERSION,
        severity=Severity.WARNING,
        message=doubt,
        remedy=_version_remedy(offered, chosen, wanted=wanted),
    )


def _version_remedy(
    offered: Sequence[OfferedVersion], chosen: OfferedVersion, *, wanted: str
) -> str:
    if not wanted:
        return "deploy a newer version of Stationmaster, whose plugins were checked with newer ones"
    try:
        better = choose_version(offered)
    except PermanentError:
        better = chosen
    if better.support is Support.STANDARD and better != chosen:
        return f"leave {_VERSION_SETTING} out to get {better.version}, and deploy again"
    return f"leave {_VERSION_SETTING} out once newer ones were checked"


def _look_at_reservation(services: Services, account: Account, subject: Subject) -> list[Finding]:
    assert subject.machines is not None
    machines = subject.machines
    try:
        found = services.reservations.look_up(machines.reservation_id)
    except (BadParameter, NotPossibleNow) as error:
        return absent(
            _RESERVATION, str(error), "use another reservation or block, or capacity=on-demand"
        )
    window = found.reservation.window
    return [
        judge_reservation(machines, available=found.available, total=found.total, window=window)
    ]


def judge_reservation(
    machines: Machines, *, available: int, total: int, window: Window | None = None
) -> Finding:
    """Judge the instances that nobody uses; `window` is that of a capacity block."""
    what, when = "reservation", ""
    if window is not None:
        what = "block"
        when = f", from {moment(window.starts_at)} to {moment(window.ends_at)}"
    said = (
        f"capacity {what} {machines.reservation_id} has {available} of {total} "
        f"{machines.instance.name} free{when}"
    )
    if available >= machines.nodes:
        return Finding(check=_RESERVATION, severity=Severity.INFO, message=said)
    is_lacking = available < machines.least_nodes
    return Finding(
        check=_RESERVATION,
        severity=Severity.ERROR if is_lacking else Severity.WARNING,
        message=f"{said}, and {machines.nodes} are wished for",
        remedy="use fewer nodes, or wait until others have left it",
    )


def _look_at_builds(services: Services, account: Account, subject: Subject) -> list[Finding]:
    """Return one finding for each machine that the project of the images may be built on."""
    found = []
    for code, (machine, used) in _BUILDS_QUOTAS.items():
        limit = account.quota(_BUILDS_SERVICE, code)
        remedy = (
            "build with container/build.sh and Docker, or ask for 1: aws service-quotas "
            f"request-service-quota-increase --service-code {_BUILDS_SERVICE} --quota-code {code} "
            f"--desired-value 1 --region {account.region}"
        )
        found.append(
            Finding(
                check=_BUILDS,
                severity=Severity.INFO if limit else Severity.WARNING,
                message=f"CodeBuild may run builds on {machine} in {account.region}, used {used}, "
                f"{limit:,} at a time",
                remedy="" if limit else remedy,
            )
        )
    return found


def _makes_machines(services: Services, subject: Subject) -> bool:
    return subject.machines is not None


CHECKS: Final = (
    Check(_QUOTA, _makes_machines, _look_at_quotas),
    Check(_OFFERS, _makes_machines, _look_at_offers),
    # It is the same for all of a deployment.
    Check(
        _VERSION,
        lambda _services, subject: subject.machines is not None or subject == DEPLOYMENT,
        _look_at_versions,
    ),
    Check(
        _RESERVATION,
        lambda _services, subject: bool(subject.machines and subject.machines.reservation_id),
        _look_at_reservation,
    ),
    # Of the deployment alone: a start builds nothing.
    Check(_BUILDS, lambda _services, subject: subject == DEPLOYMENT, _look_at_builds),
)
