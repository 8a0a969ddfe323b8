"""The variables that NCCL, libfabric and PyTorch need: the first half of the environment policy.

Each row says on which machines it holds, how bad it is where it is missing or other, why, and where
that is known from. Pure data, as of November 2026. What must not be set is in
`unwanted_variables.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stationmaster.domain.catalogue.places import Machine, On, holds

Severity = Literal["error", "warning", "info"]
NCCL_GUIDE: Final = "NVIDIA, NCCL user guide, environment variables"

# Loopback, bridges and the link-local interface of Pod Identity: a TCP fallback that picks one of
# them hangs instead of failing.
NOT_FOR_NCCL: Final = "^lo,docker,veth,eni,pod-id-link0"

# Directories of aws-ofi-nccl's library: EFA installer from 1.38, NGC's images, built by hand.
OFI_DIRECTORIES: Final = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/install/lib",
)


@dataclass(frozen=True)
class Wanted:
    """A variable that should have a value; `missing` and `other` say how bad another state is, or
    None."""

    name: str
    value: str
    on: On
    reason: str
    source: str = NCCL_GUIDE
    missing: Severity | None = None
    other: Severity | None = None
    accepted: tuple[str, ...] = ()
    """Other values that do the same, in lower case."""


WANTED: Final = (
    Wanted(
        "NVIDIA_VISIBLE_DEVICES",
        "void",
        On.CPU,
        "the NVIDIA runtime must not hand out GPUs that were not asked for",
        "NVIDIA container toolkit, environment variables",
    ),
    Wanted(
        "NCCL_DEBUG",
        "WARN",
        On.NO_EFA,
        "INFO and TRACE write much in a long run; WARN shows what fails",
    ),
    Wanted(
        "NCCL_DEBUG",
        "INFO",
        On.EFA,
        "only with INFO does NCCL say whether it uses EFA, and how many interfaces",
    ),
    # In NCCL and aws-ofi-nccl, the lines with the provider, the number of interfaces and each
    # channel's transport are of INIT and NET; what NET leaves out are the ends of communicators.
    Wanted(
        "NCCL_DEBUG_SUBSYS",
        "NET",
        On.EFA,
        "it keeps INFO to the network, so that it writes when connections are made only",
        "NVIDIA, NCCL user guide, environment variables; src/transport/net.cc of NVIDIA/nccl",
    ),
    Wanted(
        "NCCL_SOCKET_IFNAME",
        NOT_FOR_NCCL,
        On.GPU,
        "NCCL would meet its peers on a bridge or on Pod Identity's link-local interface, and hang",
        "aws-samples/aws-do-eks pull request 54",
    ),
    # The first name is deprecated and the second ignored by some releases for this option.
    Wanted(
        "PYTORCH_CUDA_ALLOC_CONF",
        "expandable_segments:True",
        On.GPU,
        "memory fragments less; deprecated from torch 2.8 on, where PYTORCH_ALLOC_CONF is the name",
        "PyTorch, notes on CUDA memory management",
    ),
    Wanted(
        "PYTORCH_ALLOC_CONF",
        "expandable_segments:True",
        On.GPU,
        "the name from torch 2.8 on; 2.9.1 ignores this option under it, so both are set",
        "pytorch/pytorch issue 183387",
    ),
    Wanted(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "1",
        On.GPU,
        "a failed collective ends the process in place of hanging",
        "PyTorch, ProcessGroupNCCL environment variables",
        other="warning",
        accepted=("2", "3"),
    ),
    Wanted(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        On.GPU,
        "a hang leaves a trace of its collectives",
        "PyTorch, flight recorder tutorial",
    ),
    Wanted(
        "TORCH_FR_BUFFER_SIZE",
        "20000",
        On.GPU,
        "so many collectives are in that trace",
        "PyTorch, flight recorder tutorial",
    ),
    Wanted(
        "FI_PROVIDER",
        "efa",
        On.EFA,
        "libfabric offers nothing but EFA; this alone lets NCCL fall back to its own sockets",
        "libfabric, fi_provider(7); NVIDIA/nccl issue 229",
        other="error",
    ),
    # The plugin calls itself Libfabric since 1.12, and goes by its older name too where this asks
    # for it.
    Wanted(
        "NCCL_NET",
        "AWS Libfabric",
        On.EFA,
        "without it NCCL falls back to its own sockets where EFA is missing, 100 times slower and "
        "without an error",
        "NVIDIA, NCCL user guide, NCCL_NET",
        missing="warning",
        other="error",
        accepted=("libfabric", "aws_libfabric"),
    ),
    Wanted(
        "FI_EFA_USE_HUGE_PAGE",
        "0",
        On.EFA,
        "data loaders fork; with libfabric's huge pages that fails with ENOMEM",
        "awslabs/awsome-distributed-ai pull request 377",
        missing="info",
        other="warning",
    ),
    Wanted(
        "FI_EFA_USE_DEVICE_RDMA",
        "0",
        On.EFA_WITHOUT_GPUDIRECT,
        "there is no GPUDirect RDMA on g5, g6 and g6e, so libfabric must not try device memory",
        "AWS, get started with EFA and NCCL",
        missing="warning",
        other="error",
    ),
    Wanted(
        "NCCL_SHM_USE_CUDA_MEMCPY",
        "1",
        On.EFA_WITHOUT_GPUDIRECT,
        "without NVLink, GPUs of a node exchange faster with the copy engine",
        missing="info",
    ),
)


def wanted_values(machine: Machine) -> dict[str, str]:
    """Return the variables that the policy sets on a machine, by name."""
    return {row.name: row.value for row in WANTED if holds(row.on, machine)}
