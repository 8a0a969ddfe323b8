"""Rules for EFA, NCCL and the meeting of processes: what libraries print into a pod's log."""

from __future__ import annotations

from functools import partial
from typing import Final

from stationmaster.diagnosis.rules import Rank, Rule, Severity
from stationmaster.domain.catalogue.defects import DEFECTS, Defect, Version

_USES_EFA: Final = "uses-efa"


_network = partial(Rule, rank=Rank.NETWORK)
_rendezvous = partial(Rule, rank=Rank.RENDEZVOUS)
_consequence = partial(Rule, rank=Rank.CONSEQUENCE)
_slow = partial(Rule, rank=Rank.SLOW, severity=Severity.WARNING)


def _of_plugin(defect: Defect) -> Rule:
    """Make the rule for a version of aws-ofi-nccl with a known defect, which prints its version."""
    return _network(
        id=f"net-{defect.id}",
        pattern=r"NET/OFI Initializing aws-ofi-nccl "
        rf"(?P<version>{_versions(defect.first, defect.fixed)})(?![\d.])",
        severity=Severity.WARNING,
        diagnosis=f"{defect.name} {{version}} {defect.what}",
        remedy=f"{defect.remedy}: image=..., or `/train RECIPE` without image=",
        source=f"{defect.source}, {defect.as_of}",
    )


def _versions(first: Version, fixed: Version | None) -> str:
    """Make a pattern of the versions from `first` on and before `fixed`, which differ in one
    number.

    Raises:
        ValueError: they differ in more.
    """
    if fixed is None or len(first) != len(fixed) or first[:-1] != fixed[:-1]:
        raise ValueError(f"versions from {first} to {fixed} are no range of the last number")
    before = "".join(rf"{number}\." for number in first[:-1])
    last = "|".join(str(number) for number in range(first[-1], fixed[-1]))
    return rf"{before}(?:{last})(?:\.\d{{1,4}})*"


RULES: Final = (
    Rule(
        id=_USES_EFA,
        pattern=r"NET/OFI Selected Provider is efa|Using network (?:AWS )?Libfabric"
        r"|via NET/(?:AWS )?Libfabric",
        rank=Rank.NOTE,
        severity=Severity.INFO,
        diagnosis="NCCL's traffic goes over EFA",
        remedy="nothing to do",
        source="aws-ofi-nccl nccl_ofi_net.cpp; NCCL net.cc",
        is_shown=False,
    ),
    _network(
        id="net-link-local",
        pattern=r"(?:NET/Socket|Bootstrap) ?: ?Using .{0,120}?(?P<nic>[\w-]+):169\.254\.",
        diagnosis="NCCL chose the interface {nic}, whose 169.254 address no other node can reach",
        remedy="exclude it in the pods: NCCL_SOCKET_IFNAME=^lo,docker,veth,eni,pod-id-link0; "
        "`stationmaster lint FILE` checks a manifest for this",
        source="aws-samples/aws-do-eks#54",
    ),
    _network(
        id="net-boot",
        pattern=r"Bootstrap ?: ?no socket interface found",
        diagnosis="NCCL_SOCKET_IFNAME leaves NCCL no network interface to start on",
        remedy="remove NCCL_SOCKET_IFNAME, or exclude interfaces instead of naming one: "
        "^lo,docker,veth,eni,pod-id-link0; `stationmaster lint FILE` checks a manifest for this",
        source="NCCL bootstrap.cc; awslabs/awsome-distributed-ai#519",
    ),
    _network(
        id="net-pinned",
        pattern=r"NCCL WARN Error: network (?P<net>.{1,40}?) not found",
        diagnosis="NCCL was told to use the network {net}, and its plugin found no device for it",
        remedy="`/train validate {cluster}` counts the EFA devices of each node; the pods must "
        "request vpc.amazonaws.com/efa, and the image must have the aws-ofi-nccl plugin",
        source="NCCL net.cc; NCCL_NET in NVIDIA's list of NCCL environment variables",
    ),
    _network(
        id="net-libfabric",
        pattern=r"libfabric\.so\S{0,20}: (?:cannot open shared object file|version `?FABRIC_)",
        diagnosis="the aws-ofi-nccl plugin and libfabric in the image do not fit together",
        remedy="take both from one EFA installer, and put /opt/amazon/efa/lib into the image's "
        "library path; `/train RECIPE` without image= uses an image in which they fit",
        source="aws/aws-ofi-nccl#241",
    ),
    _network(
        id="net-arch",
        pattern=r"Attribute arch of node cpu not found",
        diagnosis="NCCL cannot read the topology of the node: an old machine image on this "
        "instance type",
        remedy="use nodes with the AL2023 NVIDIA image of EKS; clusters that "
        "`/train cluster create NAME` makes have it",
        source="NCCL graph/xml.h, xmlGetAttrStr",
    ),
    _network(
        id="net-sg",
        pattern=r"connect to (?P<peer>[^\s]{1,80}) (?:failed ?: |returned )"
        r"(?:Connection timed out|No route to host)",
        diagnosis="packets to {peer} do not arrive: a security group, or nodes in different zones",
        remedy="let the nodes' security group allow all traffic from and to itself, and keep the "
        "nodes in one zone; `/train validate {cluster}` looks again",
        source="NCCL socket.cc; AWS, Elastic Fabric Adapter, security group",
    ),
    *(_of_plugin(defect) for defect in DEFECTS if defect.package == "ofi"),
    _network(
        id="net-versions",
        pattern=r"Mismatched NCCL version detected ?: rank (?P<one>\d+) version (?P<first>\d+) "
        r"rank (?P<other>\d+) version (?P<second>\d+)",
        diagnosis="ranks {one} and {other} run different versions of NCCL ({first} and {second})",
        remedy="give all pods one image by its digest: image=REPOSITORY@sha256:...",
        source="NCCL init.cc",
    ),
    _consequence(
        id="net-peer-address",
        pattern=r"Unable to insert remote address|Invalid receiver queue pair number"
        r"|Unresponsive receiver",
        diagnosis="another node's EFA endpoint is gone: its process has ended, most often killed "
        "for memory, or it is in another zone",
        remedy="`/train logs {run}` shows the other pods: one that was OOMKilled needs a memory "
        "limit of 32 GiB or more; nodes must share a zone and a security group",
        source="aws-ofi-nccl, libfabric efa_errno.h; awslabs/awsome-distributed-ai#312",
    ),
    _rendezvous(
        id="rdzv-unreachable",
        pattern=r"The client socket has (?:timed out after \w+|failed to connect)\b.{0,120}?"
        r"\((?P<host>[^,()]{1,120}), (?P<port>\d{1,5})\)",
        diagnosis="a process could not reach {host}, port {port}, where the processes meet: that "
        "pod does not run yet or has ended, or its name does not resolve",
        remedy="`/train status {run}` shows pods that do not run, `/train logs {run}` how one "
        "ended",
        source="PyTorch torch/csrc/distributed/c10d/socket.cpp",
    ),
    _rendezvous(
        id="rdzv-timeout",
        pattern=r"RendezvousTimeoutError|Timed out after \d+ seconds waiting for clients"
        r"|NCCL error: timeout",
        diagnosis="not all processes of the job came within the time to meet",
        remedy="`/train status {run}` shows pods that do not run: more nodes than there are, or a "
        "pod that ended first; NCCL_TIMEOUT and hostNetwork change nothing here",
        source="PyTorch torch/distributed/elastic/rendezvous/api.py, TCPStore.cpp",
    ),
    _rendezvous(
        id="rdzv-name",
        pattern=r"Name or service not known|Temporary failure in name resolution",
        # It then takes the IPv4 address.
        not_in=r"The IPv6 network addresses of",
        diagnosis="a host name does not resolve: the pod behind it does not run, or the cluster's "
        "DNS does not",
        remedy="`/train status {run}` shows pods that do not run; then "
        "`kubectl -n kube-system get pods -l k8s-app=kube-dns`",
        source="getaddrinfo(3), EAI_NONAME and EAI_AGAIN",
    ),
    _rendezvous(
        id="rdzv-etcd-module",
        pattern=r"No module named 'etcd'",
        diagnosis="the image has no client for etcd (python-etcd)",
        remedy="start it again with rendezvous=c10d, which needs none, or install python-etcd in "
        "the image",
        source="PyTorch torch/distributed/elastic/rendezvous/etcd_rendezvous.py",
    ),
    _rendezvous(
        id="rdzv-etcd",
        pattern=r"EtcdConnectionFailed|EtcdKeyNotFound",
        diagnosis="the etcd where the processes meet does not answer, or has no version 2 API",
        remedy="start it again with rendezvous=c10d; an etcd of one's own must be 3.5 or older, "
        "with --enable-v2",
        source="python-etcd etcd/__init__.py; etcd 3.6 removes the v2 API",
    ),
    _rendezvous(
        id="port-in-use",
        pattern=r"EADDRINUSE|address already in use",
        diagnosis="another process on the node has the port: two jobs with hostNetwork, or a "
        "process that was left",
        remedy="leave hostNetwork out, which EFA does not need; `stationmaster lint FILE` checks "
        "a manifest",
        source="PyTorch torch/csrc/distributed/c10d/socket.cpp",
    ),
    _consequence(
        id="rdzv-closed",
        pattern=r"RendezvousClosedError",
        diagnosis="the processes meet under an id under which a run has ended before",
        remedy="give each start an id of its own (--rdzv_id); runs of `/train` have one for each "
        "attempt: `/train resume {run}`",
        source="PyTorch torch/distributed/elastic/rendezvous/api.py",
    ),
    _consequence(
        id="nccl-watchdog",
        pattern=r"Watchdog caught collective operation timeout: WorkNCCL\("
        r".{0,80}?OpType=(?P<operation>\w+).{0,120}?Timeout\(ms\)=(?P<timeout>\d+)",
        diagnosis="a rank waited {timeout} ms in {operation} for others that did not come; the "
        "first that says so is rarely the cause",
        remedy="`/train logs {run}`: look for a pod that failed before, or for the rank with the "
        "lowest SeqNum",
        source="PyTorch ProcessGroupNCCL.cpp",
    ),
    _consequence(
        id="nccl-stuck",
        pattern=r"Rank (?P<rank>\d{1,6})\].{0,120}watchdog got stuck for (?P<seconds>\d{1,6}) "
        r"seconds",
        diagnosis="rank {rank} has stood still for {seconds} s in a collective that did not end: a "
        "rank did not come, or this one is stuck itself",
        remedy="`py-spy dump --pid PID` of rank {rank} and of the others shows where they stand; "
        "`/train logs {run}`",
        source="PyTorch ProcessGroupNCCL.cpp, heartbeat monitor",
    ),
    _consequence(
        id="nccl-abort",
        pattern=r"due to ProcessGroupNCCL watchdog hang|Heartbeat monitor timed out"
        r"|Some NCCL operations have failed or timed out"
        r"|To avoid data inconsistency, we are taking the entire process down"
        r"|Received a (?:timeout|dump) signal"
        r"|watchdog thread terminated with exception",
        diagnosis="NCCL's watchdog ended a process, because a collective did not end",
        remedy="`/train logs {run}`: look for a pod that failed before, or for the rank with the "
        "lowest SeqNum",
        source="PyTorch ProcessGroupNCCL.cpp",
    ),
    _consequence(
        id="nccl-system",
        pattern=r"unhandled system error|ncclSystemError|ncclRemoteError|remote process exited",
        diagnosis="NCCL lost the connection to another rank",
        remedy="`/train logs {run}`: another pod failed first, and its log says why",
        source="NCCL, types of errors; PyTorch NCCLUtils",
    ),
    _consequence(
        id="peer-gone",
        pattern=r"Connection (?:reset|closed) by (?:remote )?peer|Broken pipe"
        r"|failed to recv, got 0 bytes|another worker of the job is gone|elastic agent is gone"
        r"|RendezvousConnectionError",
        # Agents whose workers have succeeded say so too, when the agent with the store ends first.
        not_in=r"\[W\d{4} .{0,80}TCPStore\.cpp|elastic/agent/server/api\.py:\d+\]"
        r"|has failed to (?:shutdown|send a keep-alive heartbeat to) the rendezvous",
        diagnosis="another process of the job ended, and this one lost its connection to it",
        remedy="`/train logs {run}`: another pod failed first, and its log says why",
        source="PyTorch TCPStore.cpp; gloo pair.cc",
    ),
    _slow(
        id="net-no-provider",
        pattern=r"NET/OFI (?:No eligible providers were found"
        r"|(?:Couldn't|Could not) find any optimal provider)(?! supporting)",
        diagnosis="libfabric sees no EFA device in the pod, so NCCL goes on over TCP",
        remedy="request vpc.amazonaws.com/efa in the pods; `/train validate {cluster}` counts the "
        "devices of each node; locked memory must be unlimited (ulimit -l)",
        source="aws-ofi-nccl nccl_ofi_net.cpp",
        least_efa=1,
    ),
    _slow(
        id="net-no-device",
        pattern=r"aws-ofi-nccl initialization failed|fi_getinfo: -61|ibv_open_device failed",
        diagnosis="the pod has no EFA device: the EFA plugin does not run on its node, or the pod "
        "does not request one; NCCL goes on over TCP",
        remedy="request vpc.amazonaws.com/efa in the pods, and look whether the plugin runs on "
        "nodes of this type: `kubectl -n kube-system get pods -o wide`; `/train validate "
        "{cluster}` counts the devices",
        source="aws-ofi-nccl nccl_ofi_net.cpp; libfabric fi_getinfo(3)",
        unless=_USES_EFA,
        least_efa=1,
    ),
    _slow(
        id="net-plugin",
        pattern=r"NET/Plugin ?: ?(?:Could not find: libnccl-net|No plugin found)",
        diagnosis="NCCL found no network plugin, so it does not use EFA",
        remedy="put the plugin's folder (/opt/amazon/ofi-nccl/lib) into the image's library path "
        "and set NCCL_NET_PLUGIN=ofi; `stationmaster nccl-report FILE --instance TYPE --nodes N` "
        "proves the transport",
        source="NCCL net.cc; awslabs/awsome-distributed-ai#667",
        unless=_USES_EFA,
        least_efa=1,
    ),
    _slow(
        id="net-socket",
        pattern=r"Using network Socket|Initialized NET plugin Socket|via NET/Socket"
        r"|NET/Socket ?: ?Using",
        diagnosis="NCCL sends over TCP between nodes; where the instance type has EFA, that is "
        "many times slower",
        remedy="`/train validate {cluster}` counts the EFA devices of each node; pods must request "
        "vpc.amazonaws.com/efa, and the image needs the aws-ofi-nccl plugin",
        source="NCCL net_socket.cc; skypilot-org/skypilot#10055",
        unless=_USES_EFA,
        least_efa=1,
    ),
    _slow(
        id="net-partial",
        pattern=r"NET/OFI Selected Provider is efa.{0,60}\(found 1 nics?\)",
        diagnosis="NCCL uses one EFA adapter; p4d has 4, p5 has 32",
        remedy="request all of the instance type's adapters in the pods (`stationmaster instances` "
        "lists them); `/train validate {cluster}` counts those of each node",
        source="aws-ofi-nccl nccl_ofi_net.cpp; skypilot-org/skypilot#8391",
        least_efa=2,
    ),
)
