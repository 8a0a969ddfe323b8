"""The trainer's speed on one process against a bare PyTorch loop, and what a progress line costs.

Both train the same tiny model on the same tokens, in turns, so that what else the machine does
hits both. The trainer's side is all of `Trainer.train`: loader, FSDP2 on a mesh of one, its checks,
its collectives, and a progress line every step, written to a file.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Final

from bench.bare_loop import BareLoop
from bench.figures import AtLeast, Figure, percentile
from training.config import TrainerConfig, parse_config
from training.data.corpus import TokenShard, prepare_dataset
from training.data.packed import BatchLoader, MicroBatch
from training.parallel import Ranks, joined_ranks
from training.progress import ProgressWriter
from training.trainer import build_trainer

ROUNDS: Final = 6
STEPS: Final = 20
WARM_UP_STEPS: Final = 5
_LINES: Final = 20_000


def measure_trainer() -> list[Figure]:
    """Tokens a second of both loops, their ratio, and the cost of a progress line."""
    ours: list[float] = []
    bare: list[float] = []
    ratios: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as directory:
        config = _config(Path(directory), steps=STEPS)
        training = config.recipe.training
        shard = prepare_dataset(
            training.dataset, vocab_size=config.recipe.model.vocab_size, cache_dir=config.cache_dir
        )
        with joined_ranks(config.launch) as ranks:
            loop = BareLoop(config.recipe)
            batches = _batches(config, shard)
            for turn in range(ROUNDS):
                mine = _trainer_steps_s(
                    _config(Path(directory, str(turn)), steps=STEPS), shard, ranks
                )
                theirs = loop.step_times_s(batches)[WARM_UP_STEPS:]
                ours += mine
                bare += theirs
                ratios.append(_undisturbed(theirs) / _undisturbed(mine))
    tokens = training.global_batch_size * training.sequence_length
    return [
        Figure(
            name="trainer against a bare loop",
            value=_undisturbed(bare) / _undisturbed(ours),
            unit="",
            held=AtLeast(0.98),
            note=f"over {ROUNDS} turns: {', '.join(f'{ratio:.3f}' for ratio in ratios)}",
        ),
        Figure(
            name="trainer tokens/s, one process",
            value=tokens / _undisturbed(ours),
            unit="tokens/s",
            note=f"the bare loop {tokens / _undisturbed(bare):,.0f}; by medians of steps "
            f"{tokens / statistics.median(ours):,.0f} and {tokens / statistics.median(bare):,.0f}",
        ),
        _progress_line_cost(),
    ]


def _config(output_dir: Path, *, steps: int) -> TrainerConfig:
    words = ["tiny-llama", f"steps={steps}", f"checkpoint_every={steps}"]
    return parse_config([*words, "--output-dir", str(output_dir)], os.environ)


def _batches(config: TrainerConfig, shard: TokenShard) -> list[MicroBatch]:
    """What the trainer sees in its first steps."""
    training = config.recipe.training
    loader = BatchLoader(
        shard,
        sequence_length=training.sequence_length,
        global_batch_size=training.global_batch_size,
        micro_batch_tokens=config.micro_batch_tokens,
        seed=training.seed,
        rank=0,
        world_size=1,
    )
    return [
        batch
        for step in range(training.steps)
        for batch in islice(loader.micro_batches(step * training.global_batch_size), 1)
    ]


def _trainer_steps_s(config: TrainerConfig, shard: TokenShard, ranks: Ranks) -> list[float]:
    """Seconds of each step as the progress lines tell them, without the first and the last.

    The last step has the checkpoint behind it, which is measured on its own.
    """
    config.output_dir.mkdir()
    told = config.output_dir / "stdout"
    with told.open("w") as stdout, redirect_stdout(stdout):
        trainer = build_trainer(
            config,
            shard=shard,
            ranks=ranks,
            progress=ProgressWriter(run_id="bench", rank=0),
            stop=threading.Event(),
        )
        trainer.train()
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    times = [float(line["step_time_s"]) for line in lines if line["kind"] == "progress"]
    return times[WARM_UP_STEPS:-1]


def _undisturbed(times: Sequence[float]) -> float:
    """The lower quartile: what else the machine does makes steps longer, never shorter."""
    return percentile(times, 25)


def _progress_line_cost() -> Figure:
    writer = ProgressWriter(run_id="bench", rank=0)
    with tempfile.TemporaryFile("w") as stdout, redirect_stdout(stdout):
        began = time.process_time()
        for step in range(_LINES):
            writer.emit(
                "progress",
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
        used_s = time.process_time() - began
    return Figure(name="trainer progress line", value=1e6 * used_s / _LINES, unit="us of CPU")
