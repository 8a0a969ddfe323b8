"""The trainer's speed on one process against a bare PyTorch loop, and how fast it gets going.

Trainer and loops train the same tiny model on the same tokens, one step each in turn, so that what
else the machine does hits all of them. The trainer's side is all of `Trainer.train`: loader, its
checks, and a progress line every step, written to a file.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.bare_loop import BareLoop, pytorch_loss, trainers_loss
from bench.figures import AtLeast, Figure
from stationmaster.domain.progress_lines import Kind, ProgressLine
from training.build import Prepared, build_task, build_trainer, prepare_data
from training.config import TrainerConfig, parse_config
from training.parallel import Ranks, joined_ranks
from training.progress import Field, ProgressWriter
from training.task import Batch
from training.watchdog import Watchdog

STEPS: Final = 80
WARM_UP_STEPS: Final = 5
STARTS: Final = 3
_LINES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Span:
    """How long one step took."""

    wall_s: float
    cpu_s: float


def measure_trainer() -> list[Figure]:
    """Measure tokens a second of trainer and loops, their ratios, and a start and a line."""
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as directory:
        config = _config(Path(directory))
        prepared = prepare_data(config)
        with joined_ranks(config.launch) as ranks:
            batches = _batches(config, prepared, ranks)
            turns = _Turns(
                batches,
                BareLoop(config.recipe, pytorch_loss),
                BareLoop(config.recipe, trainers_loss),
            )
            _train(config, prepared, ranks, turns)
    ours, (bare, same_loss) = turns.ours, turns.theirs
    tokens = sum(batch.count_targets() for batch in batches) / len(batches)
    ours_s, bare_s = (statistics.median(span.wall_s for span in spans) for spans in (ours, bare))
    return [
        _ratio("trainer against a bare loop", bare, ours, "PyTorch's cross-entropy"),
        _ratio("trainer against a loop with its loss", same_loss, ours, "the trainer's own"),
        Figure(
            name="trainer tokens/s, one process",
            value=tokens / ours_s,
            unit="tokens/s",
            note=f"by the median step; the bare loop {tokens / bare_s:,.0f}",
        ),
        _progress_line_cost(),
        _time_to_first_step(),
    ]


def _ratio(name: str, theirs: Sequence[Span], ours: Sequence[Span], loss: str) -> Figure:
    """Return the median over pairs of neighbouring steps."""
    pairs = list(zip(theirs, ours, strict=True))
    cpu = statistics.median(other.cpu_s / own.cpu_s for other, own in pairs)
    return Figure(
        name=name,
        value=statistics.median(other.wall_s / own.wall_s for other, own in pairs),
        unit="",
        target=AtLeast(0.98),
        note=f"median of {len(pairs)} pairs of steps; by CPU time {cpu:.3f}; the loop's loss is "
        f"{loss}",
    )


class _Turns:
    """A sink of progress lines: after each step of the trainer, each loop takes one, too."""

    name = "bench"

    def __init__(self, batches: Sequence[Batch], *loops: BareLoop) -> None:
        self._batches = iter(batches)
        self._loops = loops
        self._began: tuple[float, float] | None = None
        self._steps = 0
        self.ours: list[Span] = []
        self.theirs: tuple[list[Span], ...] = tuple([] for _ in loops)

    def write(self, kind: Kind, fields: Mapping[str, Field]) -> None:
        """Called by the progress writer."""
        if kind != "progress":
            return
        own = None if self._began is None else _since(self._began)
        self._steps += 1
        batch = next(self._batches)
        for loop, spans in zip(self._loops, self.theirs, strict=True):
            began = _now()
            loop.step(batch)
            if self._steps > WARM_UP_STEPS:
                spans.append(_since(began))
        if own is not None and self._steps > WARM_UP_STEPS:
            self.ours.append(own)
        self._began = _now()

    def close(self) -> None:
        """Called by the progress writer at its end."""


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(began: tuple[float, float]) -> Span:
    wall_s, cpu_s = _now()
    return Span(wall_s - began[0], cpu_s - began[1])


def _config(output_dir: Path) -> TrainerConfig:
    words = ["tiny-llama", f"steps={STEPS}", f"checkpoint_every={STEPS}"]
    return parse_config([*words, "--output-dir", str(output_dir)], os.environ)


def _batches(config: TrainerConfig, prepared: Prepared, ranks: Ranks) -> list[Batch]:
    """Return what the trainer sees in its steps; of this recipe, one micro-batch each."""
    source = build_task(config, prepared, ranks).source
    assert source.num_micro_batches == 1
    return [
        batch
        for step in range(STEPS)
        for batch in source.micro_batches(step * config.recipe.training.global_batch_size)
    ]


def _train(config: TrainerConfig, prepared: Prepared, ranks: Ranks, turns: _Turns) -> None:
    with (config.output_dir / "stdout").open("w") as stdout, redirect_stdout(stdout):
        trainer = build_trainer(
            config,
            prepared=prepared,
            ranks=ranks,
            progress=ProgressWriter(run_id="bench", rank=0, sinks=[turns]),
            stop=threading.Event(),
            watchdog=Watchdog(config.watchdog, on_stall=lambda _stall: None),
        )
        trainer.train()


def _progress_line_cost() -> Figure:
    writer = ProgressWriter(run_id="bench", rank=0)
    with tempfile.TemporaryFile("w") as stdout, redirect_stdout(stdout):
        began = time.process_time()
        for step in range(_LINES):
            writer.emit(
                ProgressLine(
                    step=step,
                    total_steps=_LINES,
                    loss_nats=5.123456,
                    learning_rate=3e-4,
                    grad_norm=0.987654,
                    tokens_per_s=12345.6,
                    samples_per_s=96.45,
                    step_time_s=0.1659,
                    memory_gib=0.512,
                    mfu=None,
                )
            )
        used_s = time.process_time() - began
    return Figure(name="trainer progress line", value=1e6 * used_s / _LINES, unit="us of CPU")


def _time_to_first_step() -> Figure:
    """Return a fresh process to its first progress line, with the data prepared before: median."""
    starts = [_start_s() for _ in range(STARTS)]
    total_s = statistics.median(total for total, _ in starts)
    loaded_s = statistics.median(loaded for _, loaded in starts)
    return Figure(
        name="trainer time to first step",
        value=total_s,
        unit="s",
        note=f"of a fresh process; {loaded_s:.1f} s of it until model and data are in memory; "
        f"median of {STARTS}, best {min(total for total, _ in starts):.1f}",
    )


def _start_s() -> tuple[float, float]:
    """Return seconds until the first step is reported, and until the run is announced before it."""
    with tempfile.TemporaryDirectory(prefix="bench-start-") as directory:
        words = ["tiny-llama", "steps=1", "--output-dir", directory]
        began = time.perf_counter()
        announced_s = first_step_s = None
        with subprocess.Popen(
            [sys.executable, "-m", "training", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                passed_s = time.perf_counter() - began
                match json.loads(line)["kind"]:
                    case "started":
                        announced_s = passed_s
                    case "progress":
                        first_step_s = passed_s
    assert process.returncode == 0
    assert announced_s is not None
    assert first_step_s is not None
    return first_step_s, announced_s
