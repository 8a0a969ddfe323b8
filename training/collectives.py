"""Measure the collectives that training uses, on the machines and in the image that train.

    torchrun --nnodes 2 --nproc-per-node 8 ... -m training.collectives [--alone] [--pairs]
    torchrun --standalone --nproc-per-node 2 -m training.collectives --max-bytes 1048576

All-reduce and broadcast of float sums by torch.distributed: NCCL on GPUs, gloo on CPUs. Each size
is sent once and every value of the result is compared, then timed. First, where asked for, each
node alone and pairs of nodes measure, then all ranks; rank 0 prints tables as nccl-tests does, so
that `stationmaster nccl-report` reads them. Results are in place, so the columns for out of place
have N/A. A node goes by the variable NODE_NAME, or by its host name. With wrong values the exit
code is 3.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

from training.elastic import exit_now

ALL_REDUCE: Final = "all_reduce"
BROADCAST: Final = "broadcast"
EXIT_WRONG_VALUES: Final = 3

Each = TypeVar("Each")

_FLOAT_BYTES: Final = 4
_LEAST_BYTES: Final = 8
_WARM_UP: Final = 2
_MAX_ITERATIONS: Final = 20
# A size is timed for about so long: seconds matter for large messages, repetitions for small ones.
_SECONDS_EACH: Final = 0.05
# Compared in parts: an expected tensor of the whole size would need its memory once more.
_CHUNK: Final = 1 << 24
# Values repeat with these periods, so that a shifted or swapped result differs. Their sums are
# whole numbers below 2**24 for up to 100,000 ranks, which float32 adds exactly in any order.
_PERIOD: Final = 61
_RANK_PERIOD: Final = 97
# Large broadcasts hang with some network plugins: then this ends the process.
_TIMEOUT: Final = timedelta(minutes=3)


@dataclass(frozen=True)
class Member:
    """A rank as the head of a table shows it, where ranks count from 0 in each group."""

    rank: int
    """The rank among all ranks."""
    host: str
    pid: int
    local_rank: int
    device: str


@dataclass(frozen=True)
class Row:
    """A size: microseconds, the mean of all ranks, and values that differ from the sum."""

    num_bytes: int
    time_us: float
    num_wrong: int


@dataclass(frozen=True)
class Options:
    """What is measured."""

    sizes: tuple[int, ...]
    """The bytes of all messages among all ranks, rising by a factor."""
    max_bytes: int
    alone: bool
    pairs: bool


def parse(argv: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        SystemExit: argparse's own, code 2, naming the value.
    """
    parser = argparse.ArgumentParser(prog="python -m training.collectives")
    parser.add_argument("--max-bytes", type=_size, default=None, help="2 GiB on GPUs, else 32 MiB")
    parser.add_argument("--alone", action="store_true", help="first each node of several")
    parser.add_argument("--pairs", action="store_true", help="first nodes in pairs")
    typed = parser.parse_args(argv)
    on_gpus = torch.cuda.is_available()
    max_bytes = typed.max_bytes or (1 << 31 if on_gpus else 1 << 25)
    factor = 2 if on_gpus else 4
    sizes = [_LEAST_BYTES]
    while sizes[-1] * factor <= max_bytes:
        sizes.append(sizes[-1] * factor)
    return Options(tuple(sizes), max_bytes, typed.alone, typed.pairs)


def _size(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < _FLOAT_BYTES or number % _FLOAT_BYTES:
        raise argparse.ArgumentTypeError(f"{text} bytes are no whole number of 4-byte floats")
    return number


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measure, and print on rank 0; the exit code is the same on every rank."""
    options = parse(argv)
    device = _join(environ)
    members = _members(device, environ)
    num_wrong = 0
    for groups in _steps(options, members):
        num_wrong += _measure_groups(groups, options, members, device)
    for operation in (ALL_REDUCE, BROADCAST):
        _head(operation, options.sizes, members)
        rows = []
        for row in _rows(operation, options.sizes, device, dist.group.WORLD):
            _say(_row_line(operation, row, len(members)))
            rows.append(row)
        _tail(operation, rows, len(members))
        num_wrong += sum(row.num_wrong for row in rows)
    _over_ranks([0.0], dist.group.WORLD, dist.ReduceOp.SUM)  # rank 0 has printed by then
    dist.destroy_process_group()
    return EXIT_WRONG_VALUES if num_wrong else 0


def _join(environ: Mapping[str, str]) -> torch.device:
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=_TIMEOUT)
        return torch.device("cpu")
    device = torch.device("cuda", int(environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=_TIMEOUT)
    return device


def _members(device: torch.device, environ: Mapping[str, str]) -> list[Member]:
    """List every rank, in order."""
    own = Member(
        rank=dist.get_rank(),
        host=environ.get("NODE_NAME") or socket.gethostname(),
        pid=os.getpid(),
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
    )
    return _gathered(own)


def _gathered(own: Each) -> list[Each]:
    """Return what each rank gave, in their order, on every rank."""
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, own)
    return everyones


def _steps(options: Options, members: Sequence[Member]) -> Iterator[list[tuple[int, ...]]]:
    """Yield groups of ranks that measure at the same time, one list after the other."""
    nodes: dict[str, list[int]] = {}
    for member in members:
        nodes.setdefault(member.host, []).append(member.rank)
    ranks = list(nodes.values())
    if options.alone and len(ranks) > 1 and any(len(each) > 1 for each in ranks):
        yield [tuple(each) for each in ranks if len(each) > 1]
    if options.pairs and len(ranks) > 2:
        for pairs in rounds_of_pairs(len(ranks)):
            yield [tuple(sorted([*ranks[one], *ranks[other]])) for one, other in pairs]


def rounds_of_pairs(num_nodes: int) -> list[list[tuple[int, int]]]:
    """Pair each node (of at least 3) with two others, no node twice in a round: what both of its
    pairs have in common is the node."""
    ring = [(node, (node + 1) % num_nodes) for node in range(num_nodes)]
    closing = ring[-1:] if num_nodes % 2 else []
    even, odd = ring[: num_nodes - len(closing) : 2], ring[1::2]
    return [each for each in (even, odd, closing) if each]


def _measure_groups(
    groups: Sequence[tuple[int, ...]],
    options: Options,
    members: Sequence[Member],
    device: torch.device,
) -> int:
    """All-reduce within each group at the largest size; return how many values were wrong."""
    # Every rank takes part in making each group, so all are made before any measures.
    made = {ranks: dist.new_group(ranks) for ranks in groups}
    own = next((ranks for ranks in groups if dist.get_rank() in ranks), None)
    rows = [] if own is None else list(_rows(ALL_REDUCE, [options.max_bytes], device, made[own]))
    found = {ranks: rows for ranks, rows in _gathered((own, rows)) if ranks is not None}
    if own is not None:
        # All have ended by now. NCCL keeps buffers on the GPU for each group.
        dist.destroy_process_group(made[own])
    for ranks, [row] in found.items():
        _head(ALL_REDUCE, [row.num_bytes], [members[rank] for rank in ranks])
        _say(_row_line(ALL_REDUCE, row, len(ranks)))
        _tail(ALL_REDUCE, [row], len(ranks))
    return sum(row.num_wrong for [row] in found.values())


def _rows(
    operation: str, sizes: Sequence[int], device: torch.device, group: dist.ProcessGroup | None
) -> Iterator[Row]:
    root = dist.get_global_rank(group, 0) if group is not None else 0
    run: Callable[[torch.Tensor], object] = (
        partial(dist.all_reduce, group=group)
        if operation == ALL_REDUCE
        else partial(dist.broadcast, src=root, group=group)
    )
    for size in sizes:
        tensor = torch.empty(size // _FLOAT_BYTES, device=device)
        num_wrong = _compare(operation, tensor, run, group)
        tensor.zero_()  # sums of zeros stay zero, however often they are added
        seconds = _timed(tensor, run, _WARM_UP, device)
        [slowest] = _over_ranks([seconds], group, dist.ReduceOp.MAX)
        iterations = max(2, min(_MAX_ITERATIONS, int(_SECONDS_EACH / max(slowest, 1e-9))))
        seconds = _timed(tensor, run, iterations, device)
        total_s, wrong = _over_ranks([seconds, float(num_wrong)], group, dist.ReduceOp.SUM)
        yield Row(size, total_s / dist.get_world_size(group) * 1e6, int(wrong))


def _compare(
    operation: str,
    tensor: torch.Tensor,
    run: Callable[[torch.Tensor], object],
    group: dist.ProcessGroup | None,
) -> int:
    """Send values that differ on each rank and place; return how many of this rank's are wrong."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    for start, part in _parts(tensor):
        part.copy_(_pattern(start, part, rank))
    run(tensor)
    num_wrong = 0
    for start, part in _parts(tensor):
        if operation == ALL_REDUCE:
            expected = _pattern(start, part, 0) * num_ranks
            expected += sum(each % _RANK_PERIOD for each in range(num_ranks))
        else:
            expected = _pattern(start, part, 0)
        num_wrong += int((part != expected).sum())
    return num_wrong


def _parts(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, tensor.numel(), _CHUNK):
        yield start, tensor[start : start + _CHUNK]


def _pattern(start: int, part: torch.Tensor, rank: int) -> torch.Tensor:
    places = torch.arange(start, start + part.numel(), device=part.device)
    return (places % _PERIOD + rank % _RANK_PERIOD).to(torch.float32)


def _timed(
    tensor: torch.Tensor,
    run: Callable[[torch.Tensor], object],
    iterations: int,
    device: torch.device,
) -> float:
    """Return the seconds that one of so many takes."""
    _finish(device)
    began = time.perf_counter()
    for _ in range(iterations):
        run(tensor)
    _finish(device)
    return (time.perf_counter() - began) / iterations


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _over_ranks(
    values: list[float], group: dist.ProcessGroup | None, how: dist.ReduceOp.RedOpType
) -> list[float]:
    """Combine numbers of the host over the group; all of its ranks return the same."""
    shared = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(shared, op=how, group=group)
    return [float(value) for value in shared.tolist()]


def _say(line: str) -> None:
    """Print on rank 0. torchrun and NCCL share the pipe: a whole line at once, and at once."""
    if dist.get_rank() == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _head(operation: str, sizes: Sequence[int], members: Sequence[Member]) -> None:
    """Print as src/common.cu of NVIDIA/nccl-tests 2.17 does."""
    factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
    _say(f"# Collective test starting: {operation}_perf")
    _say(
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: {factor}(factor) "
        f"warmup iters: {_WARM_UP} iters: {_MAX_ITERATIONS} agg iters: 1 validation: 1 graph: 0"
    )
    _say("#")
    _say(f"# Using devices with torch {torch.__version__}")
    for rank, member in enumerate(members):
        _say(
            f"#  Rank {rank:2d} Group  0 Pid {member.pid:6d} on {member.host:>10} device "
            f"{member.local_rank:2d} [0x00] {member.device}"
        )
    _say("#")
    _say(f"#{'out-of-place':>74}{'in-place':>35}")
    half = "    time   algbw   busbw  #wrong"
    _say(f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6} {half}  {half}")
    units = "    (us)  (GB/s)  (GB/s)        "
    _say(f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6} {units}  {units}")


def _row_line(operation: str, row: Row, num_ranks: int) -> str:
    redop, root = ("sum", -1) if operation == ALL_REDUCE else ("none", 0)
    algbw, busbw = _bandwidths(operation, row, num_ranks)
    missing = f"{'N/A':>8}{'N/A':>8}{'N/A':>8}{'N/A':>8}"
    return (
        f"{row.num_bytes:12d}  {row.num_bytes // _FLOAT_BYTES:12d}  {'float':>8}  {redop:>6}  "
        f"{root:6d} {missing}  {row.time_us:8.2f}{algbw:8.2f}{busbw:8.2f}{row.num_wrong:8d}"
    )


def _bandwidths(operation: str, row: Row, num_ranks: int) -> tuple[float, float]:
    """Return algorithm and bus bandwidth in GB/s. Source: nccl-tests, doc/PERFORMANCE.md."""
    algbw = row.num_bytes / row.time_us / 1e3
    factor = 2 * (num_ranks - 1) / num_ranks if operation == ALL_REDUCE else 1.0
    return algbw, algbw * factor


def _tail(operation: str, rows: Sequence[Row], num_ranks: int) -> None:
    num_wrong = sum(row.num_wrong for row in rows)
    average = sum(_bandwidths(operation, row, num_ranks)[1] for row in rows) / len(rows)
    _say(f"# Out of bounds values : {num_wrong} {'FAILED' if num_wrong else 'OK'}")
    _say(f"# Avg bus bandwidth    : {average:g}")
    _say("#")
    _say(f"# Collective test concluded: {operation}_perf")
    _say("#")


if __name__ == "__main__":
    # Not sys.exit: native threads of libraries may hang a shutdown.
    exit_now(main(sys.argv[1:], os.environ))
