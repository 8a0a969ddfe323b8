"""The benchmarks by name, in the order in which they run.

`bench.__main__` reads it. Modules are imported when their benchmark runs: one of them loads torch,
another a whole AWS emulation, and none may slow down the next.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.figures import Figure


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A function `module.function() -> Sequence[Figure]`, found by name."""

    name: str
    module: str
    function: str
    summary: str

    def measure(self) -> Sequence[Figure]:
        """Run it here and now."""
        function: Callable[[], Sequence[Figure]] = getattr(
            importlib.import_module(self.module), self.function
        )
        return function()


_ALL: Final = (
    Benchmark("bot-import", "bench.bot", "measure_import", "CPU of a cold start's imports"),
    Benchmark("bot-handling", "bench.bot", "measure_handling", "20 warm functions at once"),
    Benchmark("long-run", "bench.long_run", "measure_long_run", "a run of a million steps"),
    Benchmark(
        "critical-path",
        "bench.critical_path",
        "measure_critical_path",
        "request to first step against the same work in sequence",
    ),
    Benchmark("relay", "bench.relay", "measure_pipeline", "log lines to events"),
    Benchmark("data", "bench.data", "measure_data", "tokenise and pack, load"),
    Benchmark("images", "bench.image_files", "measure_images", "image files to batches"),
    Benchmark("checkpoint", "bench.checkpoints", "measure_checkpoints", "stall of a save"),
    Benchmark("saving", "bench.saver", "measure_saving", "saver against plain uploads"),
    Benchmark("trainer", "bench.trainer", "measure_trainer", "trainer against a bare loop"),
    Benchmark("recovery", "bench.recovery", "measure_recovery", "from a death to the next step"),
    Benchmark("gpu", "bench.gpu", "measure_gpu", "Llama 3.2 1B beside torchtitan, on a GPU"),
    Benchmark("main-job", "bench.job", "measure_job", "a run from command to receipt"),
    Benchmark("slack-calls", "bench.job", "measure_slack_calls", "edits a minute of that run"),
)

BENCHMARKS: Final = {benchmark.name: benchmark for benchmark in _ALL}
