"""Whether one test of a log was fast enough, complete and right.

Speed is judged at one size. The average over all sizes depends on which sizes were asked for: of
one published log it is 8 GB/s where large messages reach 42.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stationmaster.diagnosis.nccl.log import Table
from stationmaster.diagnosis.nccl.report import Finding, Verdict, failure, passed, warning
from stationmaster.diagnosis.nccl.rows import Row
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.nccl_floors import (
    FLOORS_AS_OF,
    SLOW_SMALL_MESSAGE_US,
    SMALL_MESSAGE_BYTES,
    SMALL_MESSAGE_MAX_NODES,
    SMALLEST_JUDGED_BYTES,
    Floor,
    Limits,
)
from stationmaster.domain.sizes import size_text

# This near to half of the reference, half of the interfaces are the first suspicion.
_NEAR_HALF: Final = (0.42, 0.58)
# Newer stacks get faster, but not by so much: then the log is of other machines.
_MORE_THAN_KNOWN: Final = 1.5
_LARGER: Final = "run the test up to 2 GiB or more: -b 8 -e 2G -f 2"


@dataclass(frozen=True)
class Judged:
    """The row that the verdict is about, with the limits of its size."""

    row: Row
    floor: Floor
    limits: Limits

    @property
    def busbw_gbps(self) -> float:
        return self.row.judged.busbw_gbps

    @property
    def is_fast(self) -> bool:
        """Whether it reaches the speed of a healthy fabric."""
        return self.busbw_gbps >= self.limits.warn_below_gbps


def row_to_judge(rows: Sequence[Row], floor: Floor | None) -> Row | None:
    """Choose the size of the floor's reference, or the largest below it that is not too small.

    Of several rows of that size the slowest counts, and larger sizes only where there is no other.
    """
    large = [row for row in rows if row.size_bytes >= SMALLEST_JUDGED_BYTES]
    if not large:
        return None
    wanted = floor.reference_size_bytes if floor else max(row.size_bytes for row in large)
    sizes = {row.size_bytes for row in large}
    size = max((size for size in sizes if size <= wanted), default=min(sizes))
    return min(
        (row for row in large if row.size_bytes == size), key=lambda row: row.judged.busbw_gbps
    )


def judge_row(rows: Sequence[Row], floor: Floor | None) -> Judged | None:
    """Choose the row to judge with its limits; None without a floor or a row large enough."""
    row = row_to_judge(rows, floor)
    limits = floor.limits_at(row.size_bytes) if floor and row else None
    return Judged(row, floor, limits) if floor and row and limits else None


def speed_findings(
    table: Table, judged: Judged | None, instance: InstanceType, *, num_nodes: int, is_only: bool
) -> list[Finding]:
    """Judge the bus bandwidth of a test's large messages.

    Args:
        is_only: no test of the log can be judged; then it is worth a warning that this one
            cannot, and otherwise a note.
    """
    name = table.operation or "the test"
    if judged is not None:
        return [_compared(name, judged, num_nodes=num_nodes)]
    row = row_to_judge(table.rows, None)
    if row is None:
        largest = max(row.size_bytes for row in table.rows)
        return [
            failure(
                f"{name} has nothing to judge: its largest message has {size_text(largest)}, "
                f"bandwidth is judged from {size_text(SMALLEST_JUDGED_BYTES)} on",
                _LARGER,
            )
        ]
    return [
        Finding(
            verdict=Verdict.WARN if is_only else Verdict.PASS,
            text=f"no floor is known for {name} on {num_nodes} x {instance.name}: "
            f"{_speed(row)} is not judged",
            remedy="compare with a cluster of the same kind that trains well" if is_only else None,
        )
    ]


def small_message_us(table: Table) -> float | None:
    """Return the median time of small messages that are sent at all; None without such rows."""
    times = sorted(
        row.judged.time_us for row in table.rows if 0 < row.size_bytes <= SMALL_MESSAGE_BYTES
    )
    return times[len(times) // 2] if times else None


def latency_findings(table: Table, *, num_nodes: int) -> list[Finding]:
    """Judge what a small message takes between nodes."""
    latency = small_message_us(table)
    is_judged = table.operation == "all_reduce" and 1 < num_nodes <= SMALL_MESSAGE_MAX_NODES
    if latency is None or not is_judged or latency <= SLOW_SMALL_MESSAGE_US:
        return []
    return [
        warning(
            f"small messages take {latency:.0f} us, "
            f"at most {SLOW_SMALL_MESSAGE_US:.0f} us are expected",
            "unset NCCL_ALGO and NCCL_PROTO, and use a current NCCL and aws-ofi-nccl",
        )
    ]


def correctness_findings(table: Table) -> list[Finding]:
    """Find wrong values, results that nobody compared, and tests that did not end."""
    name = table.operation or "the test"
    findings = []
    if table.num_wrong:
        where = next(
            (
                f", first at {size_text(row.size_bytes)}"
                for row in table.rows
                if any(half.num_wrong for half in row.halves)
            ),
            "",
        )
        values = "values are" if table.num_wrong > 1 else "value is"
        findings.append(
            failure(
                f"{table.num_wrong} {values} wrong in {name}{where}: whatever its speed, "
                "such a network ruins a model",
                "test the nodes in pairs to find the one that is bad, and replace it",
            )
        )
    elif not table.was_checked:
        findings.append(warning(f"{name} did not compare its results", "run the test with -c 1"))
    return [*findings, *_ending(table, name)]


def _ending(table: Table, name: str) -> list[Finding]:
    if table.is_complete:
        return []
    reached = max((row.size_bytes for row in table.rows), default=0)
    if table.max_bytes is None or reached >= table.max_bytes:
        return [
            warning(
                f'the log ends before {name} does: the line "Avg bus bandwidth" is missing',
                "take the whole log, once the test has ended",
            )
        ]
    return [
        failure(
            f"{name} did not end: the log stops at {size_text(reached)} of "
            f"{size_text(table.max_bytes)}",
            "take the whole log; if the test hangs there, look for the first NCCL WARN of "
            "any rank, and use a current aws-ofi-nccl",
        )
    ]


def _compared(name: str, judged: Judged, *, num_nodes: int) -> Finding:
    """Compare the judged row with its limits and its reference."""
    limits, floor = judged.limits, judged.floor
    speed = f"{name}: {_speed(judged.row)}"
    reference = (
        f"a healthy fabric reaches {floor.reference_gbps:g} at "
        f"{size_text(floor.reference_size_bytes)} (as of {FLOORS_AS_OF})"
    )
    if judged.busbw_gbps > _MORE_THAN_KNOWN * floor.reference_gbps:
        return warning(
            f"{speed} is more than these instances are known to reach; {reference}",
            "say with --instance and --nodes where the test ran",
        )
    if judged.is_fast:
        return passed(f"{speed}, above the limit of {limits.warn_below_gbps:g}; {reference}")
    is_failed = judged.busbw_gbps < limits.fail_below_gbps
    limit = limits.fail_below_gbps if is_failed else limits.warn_below_gbps
    return Finding(
        verdict=Verdict.FAIL if is_failed else Verdict.WARN,
        text=f"{speed}, below the limit of {limit:g}; {reference}{_signature(judged)}",
        remedy=slow_remedy(num_nodes),
    )


def slow_remedy(num_nodes: int) -> str:
    """Say where to look when nothing else explains why a fabric is slow."""
    if num_nodes == 1:
        return "look at nvidia-smi topo -m and nvidia-smi nvlink -s on the node, and replace it"
    return (
        "compare the number of EFA interfaces on each node, unset NCCL_ALGO and NCCL_PROTO, and "
        "test the nodes in pairs to find a slow one"
    )


def _signature(judged: Judged) -> str:
    """Say what such a bandwidth is typical of, or "" where nothing is known."""
    for signature in judged.floor.signatures:
        if signature.low_gbps <= judged.busbw_gbps <= signature.high_gbps:
            return f"; this is typical of {signature.meaning}"
    share = judged.busbw_gbps / judged.floor.reference_gbps
    if judged.floor.min_nodes > 1 and _NEAR_HALF[0] <= share <= _NEAR_HALF[1]:
        return "; half of it is typical of half the EFA interfaces"
    return ""


def _speed(row: Row) -> str:
    return f"{row.judged.busbw_gbps:g} GB/s at {size_text(row.size_bytes)}"
