"""Rules for GPUs, links and nodes: what the kernel, NCCL and Kubernetes say of hardware."""

from __future__ import annotations

from functools import partial
from typing import Final

from stationmaster.diagnosis.rules import DMESG, EVENT, LOG, NODE, Rank, Rule, Severity, Where

_XID: Final = r"NVRM: Xid \(PCI:(?P<gpu>[0-9a-f:.]{1,20})\): (?P<xid>{numbers})\b"
_NVIDIA: Final = "NVIDIA, XID errors"
_REPLACE: Final = (
    "replace the node: `kubectl drain NODE --ignore-daemonsets --delete-emptydir-data`, end its "
    "instance, then `/train resume {run}`"
)
_PRESSURE: Final = frozenset({Where.NODE, Where.EVENT})

_fault = partial(Rule, rank=Rank.HARDWARE, remedy=_REPLACE)
_xid = partial(_fault, where=DMESG, source=_NVIDIA)
_node = partial(_fault, where=NODE)

RULES: Final = (
    _xid(
        id="xid-lost-gpu",
        pattern=_XID.replace("{numbers}", "79"),
        diagnosis="GPU {gpu} fell off the bus (Xid {xid}): the node needs a reboot or is faulty",
    ),
    _xid(
        id="xid-reset",
        pattern=_XID.replace("{numbers}", "48|64|74|95|109|110|119|120|136|140|143"),
        diagnosis="GPU {gpu} reports a fault of its memory, its NVLink or its firmware (Xid {xid})",
    ),
    _xid(
        id="xid-fabric",
        pattern=_XID.replace("{numbers}", "14[4-9]|150"),
        not_in=r"\bnon-?fatal\b",
        diagnosis="GPU {gpu} reports a fault of NVLink or of the fabric behind it (Xid {xid})",
    ),
    _xid(
        id="nvswitch",
        pattern=r"SXid \(PCI:(?P<switch>[0-9a-f:.]{1,20})\): (?P<sxid>\d{1,6}), "
        r"(?:Fatal|Severity 1)",
        diagnosis="the NVSwitch {switch} reports a fatal fault (SXid {sxid})",
        source="NVIDIA, Fabric Manager user guide, SXid errors",
    ),
    _fault(
        id="gpu-memory",
        pattern=r"uncorrectable ECC error encountered|cudaErrorECCUncorrectable"
        r"|CUDA_ERROR_ECC_UNCORRECTABLE|unrecovered ECC error",
        not_in="NVRM: Xid",
        diagnosis="the memory of a GPU has a fault that ECC cannot correct",
        source="CUDA driver API, error 214",
    ),
    _xid(
        id="xid-isolate",
        pattern=_XID.replace("{numbers}", "54"),
        diagnosis="GPU {gpu} gets too little power (Xid {xid})",
    ),
    Rule(
        id="xid-program",
        where=DMESG,
        pattern=_XID.replace("{numbers}", "13|31|94"),
        diagnosis="a program on GPU {gpu} read or wrote where it may not (Xid {xid}), or one "
        "memory error was contained to it",
        remedy="`/train logs {run}`: look for the CUDA error of that process; replace the node "
        "only where it comes back with other programs",
        source=_NVIDIA,
    ),
    Rule(
        id="xid-link-corrected",
        where=DMESG,
        pattern=_XID.replace("{numbers}", "14[4-9]|150") + r".{0,120}?\bnon-?fatal\b",
        rank=Rank.NOTE,
        severity=Severity.WARNING,
        diagnosis="GPU {gpu} recovered from a fault of its NVLink (Xid {xid})",
        remedy="nothing to do now; replace the node where it comes often",
        source=_NVIDIA,
    ),
    Rule(
        id="xid-cleanup",
        where=DMESG,
        pattern=_XID.replace("{numbers}", "45"),
        rank=Rank.CONSEQUENCE,
        diagnosis="the driver ended what a program had on GPU {gpu} (Xid {xid}), because the "
        "program ended or another fault came first",
        remedy="`/train logs {run}`, and dmesg of the node: look for another Xid before it",
        source=_NVIDIA,
    ),
    Rule(
        id="xid-watch",
        where=DMESG,
        pattern=_XID.replace("{numbers}", "63|92"),
        rank=Rank.NOTE,
        severity=Severity.INFO,
        diagnosis="GPU {gpu} corrected a memory error (Xid {xid})",
        remedy="nothing to do now; replace the node where it comes often",
        source=_NVIDIA,
    ),
    _fault(
        id="nvlink",
        pattern=r"Invalid access of peer GPU memory over nvlink|(?:CUDA error|Cuda failure):? 226\b"
        r"|\(error 226\)|uncorrectable NVLink error|cudaErrorNvlinkUncorrectable",
        diagnosis="a GPU could not read another one's memory over NVLink: hardware, or a process "
        "of the same node that was killed",
        remedy="where no process was killed before: " + _REPLACE,
        source="CUDA driver API, error 226",
    ),
    _fault(
        id="nvls",
        pattern=r"Failed to bind NVLink SHARP \(NVLS\) Multicast|Cuda failure 401\b",
        diagnosis="NVLink's multicast does not work on a node: a fault of its fabric manager",
        remedy="replace the node, or set NCCL_NVLS_ENABLE=0 until then, which costs speed",
        source="NVIDIA/nccl#2077",
    ),
    _node(
        id="gpu-unhealthy",
        pattern=r"AcceleratedHardwareReady False|NvidiaXID(?P<xid>\d+)",
        diagnosis="EKS's node monitoring reports a fault of a GPU or an EFA adapter",
        source="EKS user guide, node health issues",
    ),
    _node(
        id="node-lost",
        pattern=r"(?<![a-z])Ready (?:False|Unknown)\b|\bNodeNotReady\b|node \S+ is lost",
        diagnosis="a node is gone or does not answer, and its pods with it",
        remedy="`/train status {run}` says whether it recovers on another node; otherwise "
        "`/train resume {run}`",
        source="Kubernetes, node status",
    ),
    _node(
        id="spot-taken",
        pattern=r"is taken back by AWS|spot interruption",
        diagnosis="AWS took back a spot instance",
        remedy="`/train resume {run}` continues from the last saved checkpoint; "
        "capacity=on-demand is not taken back",
        source="EC2 user guide, Spot Instance interruptions",
    ),
    Rule(
        id="drained",
        where=NODE | frozenset({Where.POD}),
        pattern=r"DisruptionTarget: (?!TerminationByKubelet)(?P<why>\w{1,60})|EvictionByEvictionAPI"
        r"|PreemptionByScheduler|DeletionByTaintManager|TaintManagerEviction|\bNodeDrain"
        r"|Preempted: |in response to imminent node shutdown",
        rank=Rank.KILLED,
        diagnosis="the pod was taken from its node from outside: the node was drained or goes "
        "away, or a pod of higher priority came",
        remedy="`kubectl get events` of the node says who; `/train resume {run}` continues from "
        "the last saved checkpoint",
        source="Kubernetes, pod disruption conditions; exit code 143 is 128 + SIGTERM",
    ),
    Rule(
        id="no-gpu-seen",
        pattern=r"No CUDA GPUs are available|no CUDA-capable device is detected",
        diagnosis="the program sees no GPU: its pod asks for none, its node has none, or "
        "CUDA_VISIBLE_DEVICES hides them",
        remedy="ask for nvidia.com/gpu in the pod, and look whether `nvidia-smi` in it lists them; "
        "`stationmaster lint FILE` checks a manifest",
        source="CUDA runtime, cudaErrorNoDevice; PyTorch torch/cuda/__init__.py",
    ),
    Rule(
        id="driver-changed",
        where=LOG | EVENT,
        pattern=r"Driver/library version mismatch",
        rank=Rank.IMAGE,
        diagnosis="the node's NVIDIA driver was changed while it ran: the loaded kernel module and "
        "the libraries are of two versions",
        remedy="reboot or replace the node, and keep its packages from being upgraded in place",
        source="NVIDIA Management Library, NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    ),
    Rule(
        id="gpu-address",
        pattern=r"illegal memory access was encountered|CUDA error: misaligned address",
        diagnosis="code on a GPU used an address that is not its own: an index out of range, or a "
        "kernel that does not fit these libraries",
        remedy="start it again with CUDA_LAUNCH_BLOCKING=1 (command='env CUDA_LAUNCH_BLOCKING=1 "
        "...'), which names the call; replace the node where it always is the same",
        source="CUDA runtime, cudaErrorIllegalAddress",
    ),
    Rule(
        id="gpu-runtime",
        where=LOG | EVENT,
        pattern=r'no runtime for "nvidia" is configured|unknown or invalid runtime name: nvidia'
        r"|nvidia-container-cli: |could not select device driver.{0,40}capabilities: \[\[gpu\]\]"
        r"|libnvidia-ml\.so\.1: cannot open shared object file",
        rank=Rank.IMAGE,
        diagnosis="the node has no NVIDIA driver or container runtime that works: its machine "
        "image lacks them, or the GPU operator has not finished",
        remedy="use the AL2023 NVIDIA image of EKS; clusters that `/train cluster create NAME` "
        "makes have it",
        source="containerd, CRI runtime handlers; NVIDIA container toolkit, troubleshooting",
    ),
    Rule(
        id="node-pressure",
        where=_PRESSURE,
        pattern=r"(?:Disk|Memory|PID)Pressure True|NodeHas(?:DiskPressure|InsufficientMemory)",
        rank=Rank.KILLED,
        diagnosis="a node has too little disk, memory or process ids left, and evicts pods",
        remedy="write checkpoints and caches to the shared file system, not into the container; "
        "`/train resume {run}`",
        source="Kubernetes, node-pressure eviction",
    ),
    Rule(
        id="gpu-idle",
        pattern=r"^dmon: GPU (?P<gpu>\d{1,4}) sm (?P<sm>[0-4]?\d) % on average over "
        r"(?P<samples>\d+) samples",
        rank=Rank.SLOW,
        severity=Severity.WARNING,
        diagnosis="GPU {gpu} computed {sm} % of the time ({samples} samples), where 70 to 95 % is "
        "usual: it waits for data, for other ranks or for a checkpoint",
        remedy="`py-spy dump --pid PID` says for what; more data_workers or prepared data "
        "(dataset=packed:...), and `stationmaster nccl-report FILE --instance TYPE --nodes N` for "
        "the network",
        source="Megatron workshop, monitoring, health ranges; nvidia-smi dmon",
    ),
    _fault(
        id="device-lost",
        where=frozenset({Where.EVENT, Where.POD}),
        pattern=r"UnexpectedAdmissionError.{0,200}?(?P<device>nvidia\.com/gpu"
        r"|vpc\.amazonaws\.com/efa)",
        diagnosis="a node had fewer healthy devices ({device}) than it had reported",
        remedy="`/train validate {cluster}` counts them; " + _REPLACE,
        source="kubelet, device manager admission",
    ),
)
