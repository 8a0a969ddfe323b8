"""The meaning of the log's lines about the network for an instance type; silence proves no EFA."""

from __future__ import annotations

from typing import Final

from stationmaster.diagnosis.nccl.report import Finding, Verdict, failure, passed, warning
from stationmaster.diagnosis.nccl.transport import Kind, Transport
from stationmaster.domain.catalogue.defects import defect_of
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.nccl_floors import has_gpudirect

_DEBUG: Final = "run the test with NCCL_DEBUG=INFO, which prints the transport"
_DEVICES: Final = (
    "request vpc.amazonaws.com/efa in the pods, and look at the EFA device plugin and `fi_info -p "
    "efa` on the node"
)


def network_findings(
    transport: Transport, instance: InstanceType, *, num_nodes: int, is_fast: bool
) -> list[Finding]:
    """Judge transport, interfaces, GPUDirect and versions, as far as the instance type has them.

    Args:
        is_fast: whether a bandwidth was measured that only all interfaces with GPUDirect reach;
            then it does not matter that an older plugin does not print them.
    """
    findings = _versions(transport)
    if instance.num_efa == 0:
        return findings
    if num_nodes == 1:
        if transport.kind is Kind.SOCKET:
            findings.append(
                warning(
                    "NCCL would use sockets between nodes: it did not load EFA's plugin",
                    _socket_remedy(transport),
                )
            )
        return findings
    match transport.kind:
        case Kind.SOCKET:
            return [_sockets(transport), *findings]
        case Kind.UNKNOWN:
            return [_unknown(transport, is_fast=is_fast), *findings]
        case Kind.EFA:
            return [
                *_interfaces(transport, instance, is_fast=is_fast),
                *_direct(transport, instance, is_fast=is_fast),
                *findings,
            ]


def _sockets(transport: Transport) -> Finding:
    hosts = transport.socket_hosts
    where = f" on {', '.join(hosts[:3])}{' and others' * (len(hosts) > 3)}" if hosts else ""
    if transport.provider and transport.provider != "efa":
        what = f"libfabric sent over {transport.provider} instead of EFA"
    else:
        what = f"NCCL used sockets instead of EFA{where}"
    if transport.no_provider:
        what += ": libfabric found no EFA interface"
    elif transport.plugin_not_found and transport.plugin_version is None:
        what += ": its plugin for EFA was not found"
    return failure(what, _socket_remedy(transport), nodes=tuple(hosts))


def _socket_remedy(transport: Transport) -> str:
    if transport.no_provider or transport.plugin_version:
        return _DEVICES
    return (
        "put aws-ofi-nccl into the image and its folder on LD_LIBRARY_PATH, e.g. "
        "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu; NCCL_NET_PLUGIN=ofi selects it"
    )


def _unknown(transport: Transport, *, is_fast: bool) -> Finding:
    if transport.no_provider:
        return failure("libfabric found no EFA interface", _DEVICES)
    hint = ", and NCCL did not find its plugin" if transport.plugin_not_found else ""
    speed = "; sockets are not known to be so fast" if is_fast else ""
    return warning(
        f"no line of the log proves that EFA was used{hint}{speed}",
        _socket_remedy(transport) if hint else _DEBUG,
    )


def _interfaces(transport: Transport, instance: InstanceType, *, is_fast: bool) -> list[Finding]:
    expected, found = instance.num_efa, transport.num_nics
    if found is None:
        used = transport.num_devices_used
        seen = f"; its channels use {used} network device{'s' * (used != 1)}" if used else ""
        is_enough = is_fast or used == expected
        return [
            Finding(
                verdict=Verdict.PASS if is_enough else Verdict.WARN,
                text=f"EFA was used; the log does not say how many of the {expected} interfaces "
                f"were found{seen}",
                remedy=None if is_enough else "use a newer aws-ofi-nccl, which prints their number",
            )
        ]
    if found < expected:
        where = f" on {transport.fewest_nics_on}" if transport.fewest_nics_on else ""
        return [
            failure(
                f"{found} of {expected} EFA interfaces were found{where}",
                f"request vpc.amazonaws.com/efa: {expected} in each pod, and check that the "
                f"node group's launch template attaches {expected} interfaces",
                nodes=(transport.fewest_nics_on,) if transport.fewest_nics_on else (),
            )
        ]
    return [
        passed(f"EFA was used, with all of its {expected} interfaces")
        if found == expected
        else warning(
            f"{found} EFA interfaces were found, {instance.name} has {expected}", "check --instance"
        )
    ]


def _direct(transport: Transport, instance: InstanceType, *, is_fast: bool) -> list[Finding]:
    if not has_gpudirect(instance) or transport.has_gpudirect:
        return []
    if transport.has_gpudirect is None and is_fast:
        return []
    if transport.has_gpudirect is None:
        return [warning("no line of the log says whether GPUDirect RDMA was used", _DEBUG)]
    return [
        warning(
            "messages went through the host's memory: channels without GPUDirect RDMA",
            "load the kernel module efa_nv_peermem or nvidia_peermem on the nodes, and "
            "unset FI_EFA_USE_DEVICE_RDMA and NCCL_NET_GDR_LEVEL",
        )
    ]


def _versions(transport: Transport) -> list[Finding]:
    if transport.plugin_version is None:
        return []
    bad = defect_of("ofi", transport.plugin_version)
    if bad is None:
        return []
    return [
        failure(
            f"{bad.name} {transport.plugin_version} {bad.what} ({bad.source}, {bad.as_of})",
            bad.remedy,
        )
    ]
