"""The network check: collectives among the idle training nodes, measured with the training stack.

A job, rendered as those of runs are, sends all-reduces and broadcasts of rising sizes and compares
every value. The logs of its pods prove the transport, and are judged by the floors of the instance
type. A quick validation measures all nodes together, where there are GPUs or EFA; a full one also
measures pairs of nodes, on any machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.checks.whole_job import (
    how_it_ended,
    job_name,
    look_at_job,
    render_job,
    with_nodes,
)
from stationmaster.diagnosis.nccl.gate import GateReport, judge_gate
from stationmaster.diagnosis.nccl.log import read_log
from stationmaster.diagnosis.nccl.report import Finding as NcclFinding
from stationmaster.diagnosis.nccl.transport import Kind
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.sizes import counted
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering.check_job import collectives
from stationmaster.rendering.job_spec import KubernetesObject

NAME: Final = "network"
_LETTERS: Final = "nw"
_MIB: Final = 1 << 20


def applies(spec: ClusterSpec, *, is_full: bool) -> bool:
    """Say whether messages travel between nodes, or in a full validation between GPUs."""
    if is_full:
        return spec.nodes > 1 or spec.num_gpus > 1
    return spec.nodes > 1 and (spec.num_gpus > 0 or spec.num_efa > 0)


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make the volume that training pods mount, and the job on the idle nodes.

    Raises:
        TransientError: the file system is not there (any more).
    """
    program = collectives(is_full=cluster.is_full)
    return render_job(cluster, program, check=NAME, name=job_name(cluster, _LETTERS))


def look(cluster: LiveCluster) -> Finding:
    """Judge the job of the present nodes, once all of its pods have ended."""
    nodes = cluster.idle_nodes
    if len(nodes) < 2 and not (nodes and cluster.spec.num_gpus > 1):
        return Finding(
            Verdict.GOOD,
            f"runs use the network of all but {counted(len(nodes), 'node')}; with fewer than 2 "
            "that are free it is not measured",
            {"nodes": len(nodes)},
        )
    name = job_name(cluster, _LETTERS)
    ended = look_at_job(cluster, check=NAME, name=name, undone="the network was not measured")
    if isinstance(ended, Finding):
        return ended
    return _judged(cluster, ended.pods, ended.failed)


def _judged(cluster: LiveCluster, pods: Sequence[PodView], failed: PodView | None) -> Finding:
    gateway, spec = cluster.kubernetes, cluster.spec
    # One log at a time: those of many nodes do not fit into the memory of a function together.
    lines = (line for pod in pods for line in gateway.log(pod.name).splitlines())
    report = judge_gate(
        read_log(lines),
        as_asked_for(spec),
        num_nodes=len(cluster.idle_nodes),
        is_full=cluster.is_full,
    )
    fault = report.fault
    if failed is not None and (fault is None or not report.measured):
        return Finding(
            Verdict.BAD, f"the network could not be measured: {how_it_ended(cluster, failed)}"
        )
    figures, sentence = _figures(report), _sentence(report, len(cluster.idle_nodes))
    if fault is not None:
        text = with_nodes(_advised(fault, is_full=cluster.is_full), pods)
        bad_nodes = {with_nodes(host, pods): with_nodes(fault.text, pods) for host in fault.nodes}
        return Finding(Verdict.BAD, f"{text} ({sentence})", figures, bad_nodes)
    doubt = f"; {with_nodes(report.doubt.text, pods)}" if report.doubt else ""
    return Finding(Verdict.GOOD, f"{sentence}{doubt}", figures)


def as_asked_for(spec: ClusterSpec) -> InstanceType:
    """Return the instance type with the devices that jobs ask for."""
    found = spec.instance
    devices = {"num_gpus": spec.num_gpus, "num_efa": spec.num_efa}
    return found.model_copy(update=devices | ({} if spec.num_gpus else {"gpu": ""}))


def _advised(fault: NcclFinding, *, is_full: bool) -> str:
    """Say what is wrong, and what to type or do next."""
    remedy = fault.remedy or ""
    if "in pairs" in remedy and not is_full:
        remedy += ", which validate=full does"
    return f"{fault.text}; {remedy}" if remedy else fault.text


def _figures(report: GateReport) -> dict[str, float]:
    if not report.measured:
        return {}
    figures: dict[str, float] = {"ranks": report.num_ranks}
    for each in report.measured:
        figures[f"{each.operation}_busbw_gbps"] = each.busbw_gbps
        figures[f"{each.operation}_mib"] = _mib(each.size_bytes)
    if report.transport.num_nics is not None:
        figures["nics"] = report.transport.num_nics
    if report.slowest:
        figures["slowest_pair_busbw_gbps"] = report.slowest_gbps
    return figures


def _sentence(report: GateReport, num_nodes: int) -> str:
    if not report.measured:
        return f"nothing was measured among {counted(num_nodes, 'node')}"
    speeds = " and ".join(
        f"{each.operation.replace('_', '-')} {each.busbw_gbps} GB/s at {_mib(each.size_bytes)} MiB"
        for each in report.measured
    )
    sentence = f"{speeds} among {report.num_ranks} ranks on {counted(num_nodes, 'node')}"
    if not report.num_wrong:
        sentence += ", all values right"
    if report.transport.kind is not Kind.UNKNOWN:
        sentence += f", over {_TRANSPORT[report.transport.kind]}"
    if report.transport.num_nics is not None:
        sentence += f" with {report.transport.num_nics} interfaces a node"
    if report.slowest:
        pair = " and ".join(report.slowest)
        sentence += f"; slowest pair {pair} with {report.slowest_gbps} GB/s"
    return sentence


_TRANSPORT: Final = {Kind.EFA: "EFA", Kind.SOCKET: "sockets", Kind.UNKNOWN: "an unknown transport"}


def _mib(num_bytes: int) -> float:
    mib = num_bytes / _MIB
    return int(mib) if mib == int(mib) else mib
