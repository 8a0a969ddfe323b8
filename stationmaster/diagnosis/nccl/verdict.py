"""From a log of nccl-tests and the machines that it is about to a verdict with its reasons.

It fails closed: what a log does not show was not shown to work.
"""

from __future__ import annotations

import re
from typing import Final

from stationmaster.diagnosis.nccl.log import NcclLog, Table
from stationmaster.diagnosis.nccl.machines import contradictions, machine_findings, ranks_of
from stationmaster.diagnosis.nccl.network import network_findings
from stationmaster.diagnosis.nccl.operations import OPERATIONS
from stationmaster.diagnosis.nccl.report import (
    Figures,
    Finding,
    MeasuredRow,
    NcclReport,
    TestReport,
    Verdict,
    failure,
    warning,
    worst,
    worst_first,
)
from stationmaster.diagnosis.nccl.rows import Row
from stationmaster.diagnosis.nccl.speed import (
    Judged,
    correctness_findings,
    judge_row,
    latency_findings,
    slow_remedy,
    small_message_us,
    speed_findings,
)
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.nccl_floors import floor_for

_NO_TABLE = failure(
    "the log has no table of nccl-tests: no test has begun",
    "look for the first NCCL WARN of any rank, and for how the launcher ended",
)


# Of libfabric's efa_errno.h and aws-ofi-nccl: the other node does not answer over EFA.
_IS_UNREACHABLE: Final = re.compile(
    r"Unresponsive receiver|Unreachable remote|Unable to insert remote address"
    r"|Invalid receiver queue pair|Connection timed out|No route to host"
)
_UNREACHABLE: Final = (
    "packets between these nodes do not arrive: let their security group allow all traffic from "
    "and to itself, keep them in one zone and subnet, and look whether a process of the other node "
    "had ended before"
)


def judge(log: NcclLog, instance: InstanceType, *, num_nodes: int) -> NcclReport:
    """Judge a log of tests that ran on so many nodes (at least 1) of an instance type.

    The log has at least one line of NCCL or nccl-tests; see `NcclLog.is_empty`.
    """
    judged = [_judged(table, instance, num_nodes=num_nodes) for table in log.tables]
    tests = [
        _test_report(table, row, log, instance, num_nodes=num_nodes, is_only=not any(judged))
        for table, row in zip(log.tables, judged, strict=True)
    ]
    is_fast = any(row.is_fast for row in judged if row)
    network = network_findings(log.transport, instance, num_nodes=num_nodes, is_fast=is_fast)
    findings = network + [finding for test in tests for finding in test.findings]
    findings = worst_first(list(dict.fromkeys(findings if tests else [_NO_TABLE, *findings])))
    all_reduces = [test for test in tests if test.operation == "all_reduce"]
    main: Figures = [*all_reduces, *tests, Figures()][0]
    transport = log.transport
    return NcclReport(
        **{name: getattr(main, name) for name in Figures.model_fields},
        verdict=worst(findings),
        instance_type=instance.name,
        nodes=num_nodes,
        transport=transport.kind,
        provider=transport.provider,
        num_nics=transport.num_nics,
        num_nics_expected=instance.num_efa,
        gpudirect=transport.has_gpudirect,
        plugin_version=transport.plugin_version,
        nccl_version=transport.nccl_version,
        wrong_values=sum(test.wrong_values for test in tests),
        reasons=[finding.text for finding in findings],
        next_steps=_next_steps(findings, network, num_nodes=num_nodes),
        findings=findings,
        tests=tests,
    )


def _next_steps(findings: list[Finding], network: list[Finding], *, num_nodes: int) -> list[str]:
    """List each remedy once; where the network is at fault, no slow node is searched for."""
    steps = dict.fromkeys(finding.remedy for finding in findings if finding.remedy)
    if any(finding.verdict is Verdict.FAIL for finding in network):
        steps.pop(slow_remedy(num_nodes), None)
    return list(steps)


def _judged(table: Table, instance: InstanceType, *, num_nodes: int) -> Judged | None:
    floor = floor_for(instance, operation=table.operation or "", num_nodes=num_nodes)
    return judge_row(table.rows, floor)


def _test_report(
    table: Table,
    judged: Judged | None,
    log: NcclLog,
    instance: InstanceType,
    *,
    num_nodes: int,
    is_only: bool,
) -> TestReport:
    findings = _nothing_measured(table, log) or _test_findings(
        table, judged, instance, num_nodes=num_nodes, is_only=is_only
    )
    return TestReport(
        operation=table.operation,
        verdict=worst(findings),
        num_ranks=ranks_of(table, instance, num_nodes=num_nodes) if table.rows else None,
        peak_busbw_gbps=max((row.judged.busbw_gbps for row in table.rows), default=None),
        average_busbw_gbps=table.average_busbw_gbps,
        judged_size_bytes=judged.row.size_bytes if judged else None,
        judged_busbw_gbps=judged.busbw_gbps if judged else None,
        floor_busbw_gbps=judged.limits.fail_below_gbps if judged else None,
        warn_busbw_gbps=judged.limits.warn_below_gbps if judged else None,
        reference_busbw_gbps=judged.floor.reference_gbps if judged else None,
        reference_source=judged.floor.source if judged else None,
        small_message_us=small_message_us(table),
        wrong_values=table.num_wrong,
        is_complete=table.is_complete,
        rows=[_measured_row(row) for row in table.rows],
        findings=worst_first(findings),
    )


def _nothing_measured(table: Table, log: NcclLog) -> list[Finding]:
    if table.rows:
        return []
    text = f"{table.operation or 'a test'} began and measured nothing"
    warned = log.transport.warning
    if not warned:
        return [failure(text, _NO_TABLE.remedy)]
    remedy = _UNREACHABLE if _IS_UNREACHABLE.search(warned) else _NO_TABLE.remedy
    return [failure(f"{text}; NCCL warned: {warned}", remedy)]


def _test_findings(
    table: Table, judged: Judged | None, instance: InstanceType, *, num_nodes: int, is_only: bool
) -> list[Finding]:
    if table.operation is None:
        said = failure if is_only else warning
        return [
            said(
                "the log does not say what was measured",
                f"name it with --operation: {', '.join(OPERATIONS)}",
            )
        ]
    ranks = ranks_of(table, instance, num_nodes=num_nodes)
    machines = machine_findings(table, instance, num_nodes=num_nodes)
    findings = [*correctness_findings(table), *machines]
    if ranks is not None:
        findings += contradictions(table.rows, operation=table.operation, num_ranks=ranks)
    if any(finding.verdict is Verdict.FAIL for finding in machines):
        return findings  # its speed is that of other machines, or of other tests
    findings += speed_findings(table, judged, instance, num_nodes=num_nodes, is_only=is_only)
    return [*findings, *latency_findings(table, num_nodes=num_nodes)]


def _measured_row(row: Row) -> MeasuredRow:
    return MeasuredRow(
        size_bytes=row.size_bytes,
        time_us=row.judged.time_us,
        algbw_gbps=row.judged.algbw_gbps,
        busbw_gbps=row.judged.busbw_gbps,
        in_place_busbw_gbps=row.in_place.busbw_gbps if row.in_place else None,
    )
