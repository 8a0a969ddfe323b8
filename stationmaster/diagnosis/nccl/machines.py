"""Whether a test ran on the machines that it is judged for, and whether its figures fit together.

A test of one node is fast over NVLink and says nothing of the network, so it must not pass for two.
A bandwidth is size over time, times a factor: a row that was edited, or put together from two
tables, fails this whatever its speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.diagnosis.nccl.log import Table
from stationmaster.diagnosis.nccl.operations import algorithm_gbps, bus_factor, ranks_of_factor
from stationmaster.diagnosis.nccl.report import Finding, failure, warning
from stationmaster.diagnosis.nccl.rows import Measured, Row
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.sizes import size_text

TOLERANCE: Final = 0.02


def ranks_of(table: Table, instance: InstanceType, *, num_nodes: int) -> int | None:
    """Count the ranks: by the table's head, else by its bandwidths, else as expected."""
    if table.ran_alone:
        return 1
    if table.num_ranks and table.num_ranks > 1:
        return table.num_ranks
    expected = num_nodes * instance.num_gpus or None
    implied = implied_ranks(table.rows, table.operation or "")
    if expected and implied and _about(expected, implied):
        return expected
    return implied or expected or table.num_ranks


def machine_findings(table: Table, instance: InstanceType, *, num_nodes: int) -> list[Finding]:
    """Find where the log is of other machines than the ones that were named."""
    if table.is_of_several:
        return [
            failure(
                "the log is of several tests that ran at once and printed into each other: each "
                "measured for itself, and nothing is shown of all nodes together",
                "start one test over all nodes (mpirun, or srun with --mpi=pmix), and give its log",
            )
        ]
    if num_nodes * instance.num_gpus == 1 or table.num_ranks == 1:
        return [
            failure(
                "one GPU tested itself: it sends nothing, so its bus bandwidth is 0, and nothing "
                "is shown of any network",
                "run the test on two GPUs or more, of all nodes that are to train together",
            )
        ]
    if table.ran_alone or _sends_nothing(table):
        return [
            failure(
                "each process tested itself alone: its bus bandwidth is 0",
                "build nccl-tests with MPI=1, and start it with mpirun",
            )
        ]
    return [*_nodes(table, instance, num_nodes=num_nodes), *_gpus(table, instance)]


def _nodes(table: Table, instance: InstanceType, *, num_nodes: int) -> list[Finding]:
    num_hosts = len(table.hosts)
    if num_hosts and num_hosts != num_nodes:
        return [_wrong_nodes(f"{num_hosts} node{'s' * (num_hosts != 1)}", num_nodes)]
    ranks = ranks_of(table, instance, num_nodes=num_nodes)
    expected = num_nodes * instance.num_gpus
    if ranks is None or expected in (0, ranks):
        return []
    if not num_hosts and ranks <= instance.num_gpus * (num_nodes - 1):
        return [_wrong_nodes(f"{ranks} ranks", num_nodes)]
    return [
        warning(
            f"{ranks} ranks were measured, {num_nodes} x {instance.name} have {expected} GPUs",
            f"run one rank on each GPU: mpirun -np {expected} -N {instance.num_gpus}",
        )
    ]


def _wrong_nodes(what: str, num_nodes: int) -> Finding:
    return failure(
        f"the test ran on {what}, not on {num_nodes} node{'s' * (num_nodes != 1)}",
        "run it on all of the nodes, or say with --nodes how many it ran on",
    )


def _gpus(table: Table, instance: InstanceType) -> list[Finding]:
    gpu = instance.gpu
    other = next((name for name in sorted(table.gpus) if gpu and gpu not in name), None)
    if other is None:
        return []
    return [
        failure(
            f"the test ran on GPUs of the type {other}, {instance.name} has {gpu}",
            "say with --instance where it ran",
        )
    ]


def _sends_nothing(table: Table) -> bool:
    largest = max(table.rows, key=lambda row: row.size_bytes).judged
    return largest.busbw_gbps == 0 and largest.algbw_gbps > 0


def _about(expected: int, implied: int) -> bool:
    """Say whether both are equal, within what two decimals of a bandwidth say of so many ranks."""
    return abs(expected - implied) <= max(0, expected * expected // 4000)


def expected_busbw_gbps(row: Row, half: Measured, factor: float) -> float:
    """Compute the bandwidth from size and time of a row."""
    return factor * algorithm_gbps(row.size_bytes, half.time_us)


def contradicts(row: Row, half: Measured, factor: float) -> bool:
    """Say whether the bus bandwidth is further than 2 % from size and time, and their rounding."""
    expected = expected_busbw_gbps(row, half, factor)
    allowed = expected * (TOLERANCE + half.time_rounding) + half.busbw_rounding_gbps
    return abs(half.busbw_gbps - expected) > allowed


def implied_ranks(rows: Sequence[Row], operation: str) -> int | None:
    """Infer how many ranks measured the largest message, from its two bandwidths."""
    sized = [row for row in rows if row.judged.algbw_gbps >= 1]
    if not sized:
        return None
    half = max(sized, key=lambda row: row.judged.algbw_gbps).judged
    return ranks_of_factor(operation, half.busbw_gbps / half.algbw_gbps)


def contradictions(rows: Sequence[Row], *, operation: str, num_ranks: int) -> list[Finding]:
    """Make one finding for all rows that contradict themselves, naming the worst of them."""
    factor = bus_factor(operation, num_ranks)
    if factor is None:
        return []
    bad = [
        (row, half)
        for row in rows
        for half in row.halves
        if row.size_bytes > 0 and contradicts(row, half, factor)
    ]
    if not bad:
        return []
    row, half = max(bad, key=lambda found: _distance(found[0], found[1], factor))
    num_rows = len({id(row) for row, _ in bad})
    others = f", and {num_rows - 1} more of {len(rows)} rows" if num_rows > 1 else ""
    return [
        failure(
            f"the row of {size_text(row.size_bytes)} contradicts itself: {half.time_us:g} us "
            f"give a bus bandwidth of {expected_busbw_gbps(row, half, factor):.3g} GB/s for "
            f"{num_ranks} ranks, it says {half.busbw_gbps:g} GB/s{others}",
            "take the log as the test printed it, and measure again if it is that already",
        )
    ]


def _distance(row: Row, half: Measured, factor: float) -> float:
    expected = expected_busbw_gbps(row, half, factor)
    return max(half.busbw_gbps, expected) / max(min(half.busbw_gbps, expected), 1e-9)
