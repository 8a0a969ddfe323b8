"""Variables, and values of them, that do harm or nothing: the other half of the environment policy.

Each row has its machines and versions, how bad it is, why, and its source. Pure data of November
2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.domain.catalogue.places import On
from stationmaster.domain.catalogue.variables import NCCL_GUIDE, NOT_FOR_NCCL, Severity


@dataclass(frozen=True)
class Unwanted:
    """A variable, or a value of it, that does harm or nothing.

    A name may end in `*`. `values` in lower case; empty: whatever the value. `package` and `since`:
    only where the image's tag does not name an older version of it; `until`: not from that on.
    """

    name: str
    reason: str
    on: On = On.ANY
    severity: Severity = "warning"
    source: str = NCCL_GUIDE
    fix: str = "remove it"
    values: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    package: str = ""
    since: str = ""
    unless: tuple[str, frozenset[str]] | None = None
    """A list variable, and what it holds at most, in lower case, where the row does not hold."""


_TUNER: Final = "it overrides NCCL's tuner, which knows the machine"
_OFI: Final = "aws/aws-ofi-nccl, release notes"
_LIBFABRIC: Final = "libfabric, fi_efa(7)"
_PYTORCH: Final = "PyTorch, ProcessGroupNCCL environment variables"
_UNREAD: Final = "neither NCCL nor PyTorch reads it"
_TIMEOUT: Final = "pass timeout= to init_process_group"
_TIMEOUTS: Final = f"{_TIMEOUT}, or --distributed-timeout-minutes to Megatron"
_SLOW: Final = "it costs speed on Hopper and Blackwell"
_ON: Final = ("1", "true")

UNWANTED: Final = (
    Unwanted("NCCL_PROTO", _TUNER, on=On.EFA_WITHOUT_GPUDIRECT, allowed=("simple",)),
    Unwanted("NCCL_PROTO", _TUNER, on=On.EFA_WITH_GPUDIRECT),
    Unwanted("NCCL_PROTO", _TUNER, on=On.EFA_UNKNOWN, allowed=("simple",)),
    Unwanted("NCCL_PROTO", _TUNER, on=On.NO_EFA),
    *(
        Unwanted(name, _TUNER)
        for name in (
            "NCCL_ALGO",
            "NCCL_BUFFSIZE",
            "NCCL_MIN_NCHANNELS",
            "NCCL_MAX_NCHANNELS",
            "NCCL_P2P_NET_CHUNKSIZE",
            "NCCL_P2P_PCI_CHUNKSIZE",
            "NCCL_P2P_NVL_CHUNKSIZE",
        )
    ),
    Unwanted("NCCL_P2P_DISABLE", "GPUs lose NVLink", on=On.NVLINK, severity="error", values=_ON),
    Unwanted(
        "NCCL_P2P_DISABLE",
        "GPUs of a node no longer exchange directly",
        on=On.NO_NVLINK,
        values=_ON,
    ),
    Unwanted("NCCL_SHM_DISABLE", "processes of a node then talk over the network", values=_ON),
    Unwanted("NCCL_IB_*", "EC2 has no InfiniBand: it does nothing"),
    Unwanted(
        "NCCL_NET_PLUGIN",
        "without the plugin NCCL cannot use EFA",
        on=On.EFA,
        severity="error",
        values=("none",),
    ),
    Unwanted(
        "CUDA_LAUNCH_BLOCKING",
        "every kernel is waited for; it is for debugging",
        source="PyTorch, CUDA environment variables",
        values=_ON,
    ),
    Unwanted(
        "FI_EFA_USE_DEVICE_RDMA",
        "it turns GPUDirect RDMA off",
        on=On.EFA_WITH_GPUDIRECT,
        severity="error",
        source=_LIBFABRIC,
        values=("0",),
    ),
    Unwanted(
        "FI_EFA_USE_DEVICE_RDMA",
        "libfabric 1.18 and aws-ofi-nccl 1.7 set it by themselves",
        on=On.EFA_WITH_GPUDIRECT,
        severity="info",
        source=_OFI,
        values=("1",),
        package="ofi",
        since="1.7",
    ),
    Unwanted(
        "FI_EFA_USE_DEVICE_RDMA",
        "it is wrong on g5, g6 and g6e, and set automatically where it is right",
        on=On.EFA_UNKNOWN,
        source=_OFI,
        values=("1",),
        fix="remove it, or name the instance type with --instance",
    ),
    Unwanted(
        "FI_*",
        "the container asks for no EFA interface, so libfabric has nothing to use",
        on=On.NO_EFA,
        source=_LIBFABRIC,
        fix="remove it, or ask for vpc.amazonaws.com/efa",
    ),
    Unwanted(
        "FI_EFA_FORK_SAFE",
        "kernels from 5.15 on make it needless: the kernel and libfabric see to it",
        severity="info",
        source=_LIBFABRIC,
    ),
    Unwanted(
        "RDMAV_*",
        "libfabric does not read it, and rdma-core's copies slow every fork down",
        source="rdma-core, ibv_fork_init(3)",
    ),
    Unwanted(
        "FI_EFA_ENABLE_SHM_TRANSFER",
        "NCCL's plugin does not use it",
        severity="info",
        source=_LIBFABRIC,
    ),
    Unwanted(
        "FI_EFA_SET_CUDA_SYNC_MEMOPS",
        "only EFA installers before 1.29.1 needed it",
        source=_OFI,
        values=("0",),
        package="efa",
        since="1.29.1",
    ),
    Unwanted("NCCL_TIMEOUT", _UNREAD, fix=_TIMEOUTS),
    Unwanted("TORCH_DISTRIBUTED_TIMEOUT", _UNREAD, source=_PYTORCH, fix=_TIMEOUTS),
    Unwanted("NCCL_SOCKET_TIMEOUT_MS", _UNREAD, fix=_TIMEOUT),
    Unwanted(
        "NCCL_NVLS_ENABLE",
        f"{_SLOW}; only a faulty fabric manager (CUDA error 401) calls for it",
        on=On.NVLINK,
        values=("0",),
    ),
    Unwanted(
        "NCCL_NVLS_ENABLE", f"{_SLOW} and does nothing elsewhere", on=On.NO_NVLINK, values=("0",)
    ),
    Unwanted(
        "NCCL_ASYNC_ERROR_HANDLING",
        "the old name: PyTorch reads TORCH_NCCL_ASYNC_ERROR_HANDLING",
        source=_PYTORCH,
        fix="set TORCH_NCCL_ASYNC_ERROR_HANDLING",
        package="torch",
        since="2.2",
    ),
    Unwanted(
        "NCCL_BLOCKING_WAIT",
        "the old name: PyTorch reads TORCH_NCCL_BLOCKING_WAIT",
        source=_PYTORCH,
        fix="set TORCH_NCCL_BLOCKING_WAIT, or remove it",
        package="torch",
        since="2.2",
    ),
    Unwanted(
        "TORCH_DISTRIBUTED_DEBUG",
        "DETAIL checks every collective with another one",
        on=On.TRAINING,
        source="PyTorch, torch.distributed, debugging",
        values=("detail",),
        fix="remove it, or set INFO",
    ),
    Unwanted(
        "NCCL_DEBUG",
        "it writes much in a long run",
        on=On.TRAINING,
        severity="info",
        values=("info", "trace"),
        fix="set WARN once the transport is proven, or NCCL_DEBUG_SUBSYS=NET",
        unless=("NCCL_DEBUG_SUBSYS", frozenset({"init", "bootstrap", "env", "net"})),
    ),
    Unwanted(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "it orders kernels for tensor parallelism, and keeps FSDP from overlapping communication",
        on=On.WITHOUT_MEGATRON,
        source="NVIDIA/Megatron-LM; pytorch/torchtitan, FSDP notes",
        values=("1",),
    ),
    Unwanted(
        "LD_PRELOAD",
        "the preloaded NCCL runs in place of the one that PyTorch carries and was tested with",
        on=On.GPU,
        source="aws-samples nccl-tests image, Dockerfile",
        fix="remove it, unless that version is what you want to measure",
    ),
    Unwanted(
        "NCCL_SOCKET_IFNAME",
        'nodes with AL2023 call it ens* or enp*: NCCL ends with "no socket interface found"',
        on=On.HOST_NETWORK,
        severity="error",
        source="awslabs/awsome-distributed-ai issue 519",
        values=("eth0", "eth", "=eth0"),
        fix=f"set {NOT_FOR_NCCL}",
    ),
    Unwanted(
        "NCCL_SOCKET_IFNAME",
        "bridges and Pod Identity's link-local interface are left, on which peers do not answer",
        on=On.HOST_NETWORK,
        source="aws-samples/aws-do-eks pull request 54",
        values=("^lo", "^lo,docker", "^docker,lo", "^docker0,lo", "^lo,docker0"),
        fix=f"set {NOT_FOR_NCCL}",
    ),
    Unwanted(
        "NCCL_SOCKET_IFNAME",
        "a pod's only interface is eth0, and this excludes it",
        on=On.POD_NETWORK,
        severity="error",
        source="awslabs/awsome-distributed-ai issue 519",
        values=("^eth", "^eth0", "^lo,eth0", "^lo,eth", "^docker0,lo,eth", "^lo,docker0,eth0"),
        fix=f"set {NOT_FOR_NCCL}",
    ),
)
