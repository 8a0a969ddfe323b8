"""The relay's log pipeline: bytes of a pod's log in, events out.

Pure, so one core and no endpoint takes part. The way from a line to the table is measured in the
main job, where the whole road exists.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from bench.figures import AtLeast, Figure
from stationmaster.domain.ids import RunId
from stationmaster.domain.progress_lines import ProgressLine
from stationmaster.relay.lines import LogLine, PodFacts
from stationmaster.relay.logs import LogPipeline
from stationmaster.relay.parsing import LineInterpreter

NUM_LINES: Final = 40_000
ROUNDS: Final = 5
_CHUNK_BYTES: Final = 64 * 1024
_AT: Final = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def measure_pipeline() -> list[Figure]:
    """Measure events a second of progress lines, lines a second of chatter, and memory."""
    events_per_s = _lines_per_s(_progress_line, expected_events=NUM_LINES)
    chatter_per_s = _lines_per_s(_chatter_line, expected_events=0)
    return [
        Figure(
            name="relay progress lines to events",
            value=events_per_s,
            unit="events/s",
            target=AtLeast(5000),
            note=f"median of {ROUNDS} x {NUM_LINES:,} lines, one core",
        ),
        Figure(name="relay other lines", value=chatter_per_s, unit="lines/s"),
        Figure(
            name="relay peak memory, later against earlier",
            value=_memory_growth_kib(),
            unit="KiB",
            note=f"peak of lines {2 * NUM_LINES:,} on less the peak of those before",
        ),
    ]


def _lines_per_s(line: Callable[[int], str], *, expected_events: int) -> float:
    log = _log(line, num_lines=NUM_LINES)
    rates = []
    for _ in range(ROUNDS):
        pipeline = _pipeline()
        began = time.process_time()
        found = _feed(pipeline, log)
        rates.append(NUM_LINES / (time.process_time() - began))
        if found != expected_events:
            raise RuntimeError(f"{NUM_LINES} lines gave {found} events, expected {expected_events}")
    return statistics.median(rates)


def _memory_growth_kib() -> float:
    """Measure how much the peak grows with the log; a window of 5 s of stamps is kept."""
    pipeline = _pipeline()
    log = _log(_chatter_line, num_lines=4 * NUM_LINES)
    half = len(log) // 2
    tracemalloc.start()
    try:
        _feed(pipeline, log[:half])
        _, first_peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        _feed(pipeline, log[half:])
        _, second_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (second_peak - first_peak) / 1024


def _pipeline() -> LogPipeline:
    facts = PodFacts(
        container="pytorch",
        run_id=RunId("tiny-llama-0123abcd"),
        job="tiny-llama-0123abcd",
        name="tiny-llama-0123abcd-worker-0",
        uid="uid-0",
    )
    pipeline = LogPipeline(LineInterpreter(facts), keep_line=_keep_nothing)
    pipeline.begin_stream(container_run=0)
    return pipeline


def _keep_nothing(_line: LogLine) -> None:
    return None


def _feed(pipeline: LogPipeline, log: bytes) -> int:
    found = 0
    for start in range(0, len(log), _CHUNK_BYTES):
        found += len(pipeline.feed(log[start : start + _CHUNK_BYTES]))
    return found + len(pipeline.finish())


def _log(line: Callable[[int], str], *, num_lines: int) -> bytes:
    """Write a log as the kubelet does: a stamp before each line, 5,000 of them a second."""
    stamped = (
        f"2026-01-02T{3 + n // 18_000_000:02d}:{n // 300_000 % 60:02d}:{n // 5000 % 60:02d}."
        f"{n % 5000 * 200_000:09d}Z {line(n)}\n"
        for n in range(num_lines)
    )
    return "".join(stamped).encode()


def _progress_line(n: int) -> str:
    return ProgressLine(
        run_id="tiny-llama-0123abcd",
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


def _chatter_line(n: int) -> str:
    return f"INFO 2026-01-02 03:04:05,678 worker: loaded shard {n} of the data set in 12 ms"
