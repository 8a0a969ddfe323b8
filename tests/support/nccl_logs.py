"""Logs of nccl-tests, written from published figures the way that its versions print them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GIB = 1 << 30
HOSTS = ("node-a", "node-b")

FACTORS = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
}


@dataclass(frozen=True)
class Figures:
    """Time in microseconds and bus bandwidth in GB/s of one size, out of place and in place."""

    size: int
    time: float
    busbw: float
    wrong: str = "0"
    in_place_wrong: str = "0"


def ramp(
    peak: float, *, largest: int = GIB, latency: float = 70, operation="all_reduce", ranks=16
) -> list[Figures]:
    """Sizes from 8 B by factors of two, up to exactly the peak at the largest."""
    factor = FACTORS[operation](ranks)
    rows, size = [], 8
    while size <= largest:
        ideal = factor * largest / (peak * 1e3) - latency
        time = latency + ideal * size / largest
        rows.append(Figures(size, time, factor * size / time / 1e3))
        size *= 2
    return rows


def head(
    *,
    operation: str | None = "all_reduce",
    ranks=16,
    hosts=HOSTS,
    largest=GIB,
    gpu="A100-SXM4-40GB",
) -> list[str]:
    """What precedes the table; old versions do not name the operation."""
    named = [f"# Collective test starting: {operation}_perf"] if operation else []
    return [
        *named,
        f"# nThread 1 nGpus 1 minBytes 8 maxBytes {largest} step: 2(factor) warmup iters: 5 "
        "iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2} Group  0 Pid {100 + rank} on "
            f"{hosts[rank * len(hosts) // ranks]:>10} device {rank % 8:2} [0x{rank:02x}] "
            f"NVIDIA {gpu}"
            for rank in range(ranks)
        ),
    ]


def table(rows: Sequence[Figures], *, old=False, operation="all_reduce") -> list[str]:
    """Header and rows: with root and #wrong, or without and with a float error."""
    redop = "none" if operation in ("broadcast", "all_gather") else "sum"
    root = 0 if operation == "broadcast" else -1
    lines = [
        "#",
        "#                              out-of-place                       in-place          ",
        f"#       size         count      type   redop{'' if old else '    root'}     time   algbw"
        f"   busbw {'error ' if old else '#wrong'}     time   algbw   busbw "
        f"{'error' if old else '#wrong'}",
        "#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)",
    ]
    for row in rows:
        algbw = row.size / row.time / 1e3
        half = f"  {_time(row.time):>7}  {algbw:6.2f}  {row.busbw:6.2f}"
        errors = [row.wrong, row.in_place_wrong]
        if old:
            errors = ["5e-07" if error == "0" else error for error in errors]
        lines.append(
            f"{row.size:12}  {row.size // 4:12}  {'float':>8}  {redop:>6}"
            + ("" if old else f"  {root:6}")
            + "".join(f"{half}  {error:>6}" for error in errors)
        )
    return lines


def tail(*, average: float = 8.24, operation=None) -> list[str]:
    """The last lines of a test."""
    concluded = ["#", f"# Collective test concluded: {operation}_perf"] if operation else []
    return [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {average:g} ",
        *concluded,
    ]


def info(host: str, text: str) -> str:
    """A line of NCCL with NCCL_DEBUG=INFO."""
    return f"{host}:1234:1240 [0] NCCL INFO {text}"


def efa(
    num_nics: int | None = 4, *, hosts=HOSTS, devices=4, direct=True, plugin="1.16.3-aws"
) -> list[str]:
    """NCCL over EFA; without a number of interfaces as old plugins print it."""
    suffix = "/GDRDMA" if direct else ""
    found = "" if num_nics is None else f", fabric is efa-direct (found {num_nics} nics)"
    lines = []
    for host in hosts:
        lines += [
            info(host, "NET/Plugin: Could not find: libnccl-net-aws-ofi-nccl.so"),
            info(host, f"NET/OFI Initializing aws-ofi-nccl {plugin}"),
            info(host, f"NET/OFI Selected provider is efa{found}"),
            info(host, "Using network AWS Libfabric"),
            *(
                info(
                    host,
                    f"Channel 0{i}/0 : 9[1] -> 0[0] [receive] via NET/AWS Libfabric/{i}{suffix}",
                )
                for i in range(devices)
            ),
        ]
    return [*lines, "NCCL version 2.27.7+cuda12.9"]


def sockets(*, hosts=HOSTS) -> list[str]:
    """NCCL without a plugin: its own sockets."""
    return [
        line
        for host in hosts
        for line in (
            info(host, "NET/Plugin: Could not find: libnccl-net.so"),
            info(host, "NET/IB : No device found."),
            info(host, "NET/Socket : Using [0]eth0:10.0.0.1<0>"),
            info(host, "Using network Socket"),
            info(host, "Channel 00/0 : 9[1] -> 0[0] [receive] via NET/Socket/0"),
        )
    ]


def whole(rows: Sequence[Figures], network: Sequence[str], *, old=False, **more) -> list[str]:
    """A log from its head to its last line."""
    average = more.pop("average", 8.24)
    operation = more.get("operation", "all_reduce")
    return [
        *head(largest=max(row.size for row in rows), **more),
        *network,
        *table(rows, old=old, operation=operation),
        *tail(average=average, operation=operation),
    ]


def _time(value: float) -> str:
    if value >= 10_000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"
