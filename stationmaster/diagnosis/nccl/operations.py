"""What nccl-tests computes: which factor leads from algorithm to bus bandwidth, and who ran it.

Source: doc/PERFORMANCE.md of NVIDIA/nccl-tests. Sizes are in bytes, times in microseconds,
bandwidths in GB/s (1e9 bytes). Pure arithmetic.
"""

from __future__ import annotations

from typing import Final

OPERATIONS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoallv",
    "alltoall",
    "broadcast",
    "sendrecv",
    "hypercube",
    "scatter",
    "gather",
    "reduce",
)
# Broadcasts, reductions to one rank and pairs send every byte once; a rank of the others keeps its
# own part of them.
_ONCE: Final = ("broadcast", "reduce", "sendrecv")
_SHARED: Final = tuple(each for each in OPERATIONS if each not in ("all_reduce", *_ONCE))

TYPE_BYTES: Final = {
    "int8": 1,
    "uint8": 1,
    "char": 1,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "half": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "int": 4,
    "float": 4,
    "int64": 8,
    "uint64": 8,
    "double": 8,
}


def bus_factor(operation: str, num_ranks: int) -> float | None:
    """Return bus over algorithm bandwidth; None where it is unknown or nothing is sent."""
    if num_ranks < 2:
        return None
    if operation == "all_reduce":
        return 2 * (num_ranks - 1) / num_ranks
    if operation in _SHARED:
        return (num_ranks - 1) / num_ranks
    return 1.0 if operation in _ONCE else None


def ranks_of_factor(operation: str, factor: float) -> int | None:
    """Infer how many ranks measured with this factor, at most 4096; None where it does not say.

    Printed bandwidths have few digits, so a count of ranks above 100 is only near.
    """
    if operation == "all_reduce":
        rest = 1 - factor / 2
    elif operation in _SHARED:
        rest = 1 - factor
    else:
        return None
    if not 1 / 4096 <= rest <= 0.51:
        return None
    return round(1 / rest)


def algorithm_gbps(size_bytes: int, time_us: float) -> float:
    """Divide bytes by time; `time_us` is above 0."""
    return size_bytes / time_us / 1e3
