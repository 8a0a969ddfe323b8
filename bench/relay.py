"""The relay's log pipeline: bytes of a pod's log in, events out.

Pure, so one core and no endpoint takes part. The way from a line to the table is measured in the
main job, where the whole road exists.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from datetime import UTC, datetime
from typing import Final

from bench.figures import Figure
from stationmaster.domain.ids import RunId
from stationmaster.domain.progress_lines import ProgressLine
from stationmaster.relay.lines import PodFacts
from stationmaster.relay.logs import LogPipeline
from stationmaster.relay.parsing import LineInterpreter

NUM_LINES: Final = 40_000
ROUNDS: Final = 5
_CHUNK_BYTES: Final = 64 * 1024
_RUN: Final = "tiny-llama-0123abcd"
_AT: Final = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def measure_pipeline() -> list[Figure]:
    """Measure events a second of progress lines, and how much the memory grows with the log."""
    log = _log(NUM_LINES)
    rates = []
    for _ in range(ROUNDS):
        pipeline = _pipeline()
        began = time.process_time()
        found = _feed(pipeline, log) + len(pipeline.finish())
        rates.append(NUM_LINES / (time.process_time() - began))
        if found != NUM_LINES:
            raise RuntimeError(f"{NUM_LINES} lines gave {found} events, expected as many")
    return [
        Figure(
            name="relay progress lines to events",
            value=statistics.median(rates),
            unit="events/s",
            at_least=5000,
            note=f"median of {ROUNDS} x {NUM_LINES:,} lines, one core",
        ),
        Figure(
            name="relay peak memory, later against earlier",
            value=_memory_growth_kib(_log(4 * NUM_LINES)),
            unit="KiB",
            note=f"peak of lines {2 * NUM_LINES:,} on less the peak of those before",
        ),
    ]


def _memory_growth_kib(log: bytes) -> float:
    """Measure how much the peak grows with the log; a window of 5 s of stamps is kept."""
    pipeline, half, peaks = _pipeline(), len(log) // 2, []
    tracemalloc.start()
    for part in (log[:half], log[half:]):
        tracemalloc.reset_peak()
        _feed(pipeline, part)
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    return (peaks[1] - peaks[0]) / 1024


def _pipeline() -> LogPipeline:
    facts = PodFacts(
        container="pytorch", run_id=RunId(_RUN), job=_RUN, name=f"{_RUN}-worker-0", uid="uid-0"
    )
    pipeline = LogPipeline(LineInterpreter(facts), keep_line=lambda _line: None)
    pipeline.begin_stream(container_run=0)
    return pipeline


def _feed(pipeline: LogPipeline, log: bytes) -> int:
    return sum(
        len(pipeline.feed(log[start : start + _CHUNK_BYTES]))
        for start in range(0, len(log), _CHUNK_BYTES)
    )


def _log(num_lines: int) -> bytes:
    """Write a log as the kubelet does: a stamp before each line, 5,000 of them a second."""
    return "".join(
        f"2026-01-02T{3 + n // 18_000_000:02d}:{n // 300_000 % 60:02d}:{n // 5000 % 60:02d}."
        f"{n % 5000 * 200_000:09d}Z {_progress_line(n)}\n"
        for n in range(num_lines)
    ).encode()


def _progress_line(n: int) -> str:
    return ProgressLine(
        run_id=_RUN,
        seq=n,
        at=_AT,
        step=n + 1,
        total_steps=NUM_LINES,
        loss_nats=5.123456,
        learning_rate=0.0003,
        grad_norm=0.987654,
        tokens_per_s=12345.6,
        samples_per_s=96.45,
        step_time_s=0.1659,
        memory_gib=0.512,
        mfu=None,
    ).text()
