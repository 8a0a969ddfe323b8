"""Whether the figures of a table belong together: bandwidth is size over time, times a factor.

A row that was edited, or put together from two tables, fails this whatever its speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.diagnosis.nccl.operations import algorithm_gbps, bus_factor, ranks_of_factor
from stationmaster.diagnosis.nccl.report import Finding, failure
from stationmaster.diagnosis.nccl.rows import Measured, Row
from stationmaster.domain.sizes import size_text

TOLERANCE: Final = 0.02


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
