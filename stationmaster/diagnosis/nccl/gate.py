"""Whether a cluster's collectives are good enough to train: the verdict of the check `network`.
Pure.

The machines are known, so it is stricter than `verdict.judge`, which reads logs of any origin: what
is not proven here is a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from stationmaster.diagnosis.nccl.log import NcclLog, Table
from stationmaster.diagnosis.nccl.machines import contradictions, machine_findings
from stationmaster.diagnosis.nccl.report import Finding, Verdict, failure, worst_first
from stationmaster.diagnosis.nccl.rows import Row
from stationmaster.diagnosis.nccl.speed import correctness_findings, row_to_judge
from stationmaster.diagnosis.nccl.transport import Kind, Transport
from stationmaster.diagnosis.nccl.verdict import judge
from stationmaster.domain.catalogue.instances import InstanceType

MEASURED: Final = ("all_reduce", "broadcast")
# A node slower than this share of the others is bad. An assumption: machines of one type differ by
# less, also where EC2 limits some of them to a quarter for lack of network credits.
_SLOW_NODE: Final = 0.2
_HANGS: Final = (
    "start it again; large messages hang with some versions of aws-ofi-nccl, so put a current one "
    "into the training image if it happens twice"
)
_PLUGIN: Final = (
    "put aws-ofi-nccl into the training image and its folder on LD_LIBRARY_PATH; "
    "NCCL_NET_PLUGIN=ofi selects it"
)


@dataclass(frozen=True)
class Measured:
    """An operation at the size that counts, among all ranks."""

    operation: str
    size_bytes: int
    busbw_gbps: float


@dataclass(frozen=True)
class GateReport:
    """The findings, the worst first, and what was measured among all nodes."""

    findings: tuple[Finding, ...]
    measured: tuple[Measured, ...]
    transport: Transport
    num_ranks: int
    num_wrong: int
    """The number of values that differ from what they should be, in any table."""
    slowest: tuple[str, ...] = ()
    """The nodes of the slowest pair; empty where no pairs were measured."""
    slowest_gbps: float = 0.0

    @property
    def fault(self) -> Finding | None:
        """The first reason not to train there, or None."""
        return next((each for each in self.findings if each.verdict is Verdict.FAIL), None)

    @property
    def doubt(self) -> Finding | None:
        """The first thing that could be better, or None."""
        return next((each for each in self.findings if each.verdict is Verdict.WARN), None)


def judge_gate(
    log: NcclLog, instance: InstanceType, *, num_nodes: int, is_full: bool
) -> GateReport:
    """Judge the log of all pods of a measurement on `num_nodes` nodes.

    Args:
        instance: with the GPUs and EFA interfaces that jobs ask for there, none on CPUs.
        is_full: whether pairs of nodes were to be measured, of more than two nodes.
    """
    of_all = _among(num_nodes, log)
    alone = _among(1, log) if num_nodes > 1 else []
    pairs = _among(2, log) if num_nodes > 2 else []
    expected = num_nodes if is_full and num_nodes > 2 else 0
    findings = [
        *_missing(of_all, pairs, expected_pairs=expected),
        *_of_parts(alone, pairs, instance),
        *_judged(of_all, log.transport, instance, num_nodes=num_nodes),
        *_unproven(of_all, log.transport, instance, num_nodes=num_nodes),
    ]
    slowest = min(pairs, key=_busbw, default=None)
    return GateReport(
        findings=tuple(worst_first(list(dict.fromkeys(findings)))),
        measured=tuple(
            Measured(table.operation or "", row.size_bytes, row.judged.busbw_gbps)
            for table in of_all
            if (row := _row(table)) is not None
        ),
        transport=log.transport,
        num_ranks=max((len(table.ranks) for table in of_all), default=0),
        num_wrong=sum(table.num_wrong for table in log.tables),
        slowest=tuple(sorted(slowest.hosts)) if slowest else (),
        slowest_gbps=_busbw(slowest) if slowest else 0.0,
    )


def _among(num_nodes: int, log: NcclLog) -> list[Table]:
    return [table for table in log.tables if len(table.hosts) == num_nodes]


def _missing(
    of_all: Sequence[Table], pairs: Sequence[Table], *, expected_pairs: int
) -> list[Finding]:
    complete = {table.operation for table in of_all if table.is_complete and table.was_checked}
    missing = [name for name in MEASURED if name not in complete]
    what = f"{' and '.join(missing)} among all nodes was not measured to its end" if missing else ""
    if len(pairs) < expected_pairs:
        what = f"{len(pairs)} of {expected_pairs} pairs of nodes were measured"
    return [failure(what, _HANGS)] if what else []


def _of_parts(
    alone: Sequence[Table], pairs: Sequence[Table], instance: InstanceType
) -> list[Finding]:
    """Find what is wrong within one node or between two, with their names."""
    bad_pairs: dict[tuple[str, ...], Finding] = {}
    findings = []
    for table in [*alone, *pairs]:
        faults = [
            each
            for each in _judged([table], None, instance, num_nodes=len(table.hosts))
            if each.verdict is Verdict.FAIL
        ]
        if not faults:
            continue
        if len(table.hosts) == 2:
            bad_pairs[tuple(sorted(table.hosts))] = faults[0]
        else:
            [host] = table.hosts
            text = f"node {host}: {faults[0].text}"
            findings.append(faults[0].model_copy(update={"text": text, "nodes": (host,)}))
    return [*findings, *(_named(bad_pairs) or _slow_node(pairs))]


def _named(bad_pairs: dict[tuple[str, ...], Finding]) -> list[Finding]:
    """Name the node that both of its pairs have in common, else each pair."""
    counts = Counter(host for pair in bad_pairs for host in pair)
    common = [host for host, count in counts.items() if count > 1]
    if len(common) == 1:
        [host] = common
        fault = next(fault for pair, fault in bad_pairs.items() if host in pair)
        text = f"node {host} is bad with both of its partners: {fault.text}"
        return [fault.model_copy(update={"text": text, "nodes": (host,)})]
    return [
        fault.model_copy(update={"text": f"nodes {' and '.join(pair)}: {fault.text}"})
        for pair, fault in bad_pairs.items()
    ]


def _slow_node(pairs: Sequence[Table]) -> list[Finding]:
    """Find the node whose pairs are all far slower than those without it, floor or not."""
    for host in sorted({host for table in pairs for host in table.hosts}):
        own = [_busbw(table) for table in pairs if host in table.hosts]
        others = [_busbw(table) for table in pairs if host not in table.hosts]
        if len(own) > 1 and others and max(own) < _SLOW_NODE * median(others):
            text = (
                f"node {host} is slow with both of its partners: {max(own)} GB/s at best, "
                f"{median(others)} GB/s between others"
            )
            remedy = "train without this node: a job is as slow as its slowest node"
            return [failure(text, remedy, nodes=(host,))]
    return []


def _judged(
    tables: Sequence[Table],
    transport: Transport | None,
    instance: InstanceType,
    *,
    num_nodes: int,
) -> list[Finding]:
    """Judge tables and, unless the transport is None, NCCL's own lines."""
    if not tables:
        return []
    if instance.num_gpus:
        log = NcclLog(tuple(tables), transport or Transport())
        report = judge(log, instance, num_nodes=num_nodes)
        return report.findings if transport else report.tests[0].findings
    # CPUs have neither floors nor NCCL: values, figures and machines are what there is to judge.
    findings: list[Finding] = []
    for table in tables:
        findings += correctness_findings(table)
        findings += machine_findings(table, instance, num_nodes=num_nodes) if table.rows else []
        findings += contradictions(
            table.rows, operation=table.operation or "", num_ranks=len(table.ranks)
        )
    return findings


def _unproven(
    of_all: Sequence[Table], transport: Transport, instance: InstanceType, *, num_nodes: int
) -> list[Finding]:
    """Require proof of the transport between nodes that have EFA; silence is none."""
    if not instance.num_efa or num_nodes == 1:
        return []
    if transport.kind is Kind.UNKNOWN:
        return [failure("no line of NCCL proves that EFA was used between the nodes", _PLUGIN)]
    report = judge(NcclLog(tuple(of_all), transport), instance, num_nodes=num_nodes)
    is_fast = (report.judged_busbw_gbps or 0.0) >= (report.warn_busbw_gbps or float("inf"))
    known = transport.num_nics is not None or transport.num_devices_used == instance.num_efa
    if transport.kind is Kind.EFA and not known and not is_fast:
        return [
            failure(
                f"no line of NCCL says how many of the {instance.num_efa} EFA interfaces were "
                "found",
                "put a newer aws-ofi-nccl into the training image, which prints their number",
            )
        ]
    return []


def _row(table: Table) -> Row | None:
    """Choose the row to read bandwidth from: the one that is judged, or the largest."""
    return row_to_judge(table.rows, None) or max(
        table.rows, key=lambda row: row.size_bytes, default=None
    )


def _busbw(table: Table) -> float:
    row = _row(table)
    return row.judged.busbw_gbps if row else 0.0
