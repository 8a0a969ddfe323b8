"""The trainer on one process: its speed against a bare PyTorch loop, and what a checkpoint costs.

Trainer and loop train the same tiny model on the same tokens, one step each in turn, so that what
else the machine does hits both. The trainer's side is all of `Trainer.train`: loader, its checks,
and a progress line every step, written to a file. The loop has the same transformers model, the
same batches (read before, kept in memory), loss, optimizer and clipping; no data loading, no
sharding, no collectives, no checks, no reports.

A model that really trains saves through the trainer's own `Checkpointer` while its steps continue.
The target is for the stall that `checkpoint_saved` lines report: the time in `start_save`, and the
time that the next step waits for the copy. The yardstick is torch.distributed.checkpoint writing
the same state at once, which is how long training would stand still without any of this. Reported
beside it: what the steps lose to the writer while it copies, hashes, writes and reads back next to
them: time of those steps over that of as many undisturbed ones. On a machine whose cores all
compute that is most of the cost, and no stall shows it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from bench.figures import Figure
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.progress_lines import Kind
from training.build import build_task, build_trainer, prepare_data
from training.checkpoint import Checkpointer
from training.config import Launch, parse_config
from training.models.architectures import build_model
from training.models.cross_entropy import sum_cross_entropy
from training.models.initialisation import initialise
from training.parallel import Ranks, joined_ranks
from training.progress import Field, ProgressWriter
from training.task import Batch
from training.watchdog import Watchdog

STEPS: Final = 80
WARM_UP_STEPS: Final = 5

_Span = tuple[float, float]
"""The wall-clock and CPU seconds of a step."""


class _BareLoop:
    """One model that continues to learn from call to call."""

    def __init__(self, recipe: Recipe) -> None:
        assert isinstance(recipe.model, LanguageModel)
        self._model = build_model(recipe.model)
        initialise(self._model, seed=recipe.training.seed, device=torch.device("cpu"))
        self._clip = recipe.own_training.grad_clip
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=recipe.training.learning_rate,
            betas=(recipe.training.beta1, recipe.training.beta2),
            weight_decay=recipe.training.weight_decay,
            fused=True,
        )

    def step(self, batch: Batch) -> None:
        """Forward, backward, clip, update."""
        logits = self._model(input_ids=batch.inputs).logits.flatten(0, 1)
        targets = batch.targets.flatten()
        # The trainer's own function, which reads the logits a few rows at a time.
        loss = sum_cross_entropy(logits, targets, overwrite=True) / len(targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


class _Turns:
    """A sink of progress lines: after each step of the trainer, the loop takes one, too."""

    name = "bench"

    def __init__(self, batches: Sequence[Batch], loop: _BareLoop) -> None:
        self._batches = iter(batches)
        self._loop = loop
        self._began: _Span | None = None
        self.pairs: list[tuple[_Span, _Span]] = []
        """Of the trainer and the loop; the trainer's first step, with its start, is left out."""

    def write(self, kind: Kind, fields: Mapping[str, Field]) -> None:
        """Called by the progress writer."""
        if kind != "progress":
            return
        own = None if self._began is None else _since(self._began)
        began = _now()
        self._loop.step(next(self._batches))
        if own is not None:
            self.pairs.append((own, _since(began)))
        self._began = _now()

    def close(self) -> None:
        """Called by the progress writer at its end."""


def _now() -> _Span:
    return time.perf_counter(), time.process_time()


def _since(began: _Span) -> _Span:
    wall_s, cpu_s = _now()
    return wall_s - began[0], cpu_s - began[1]


def measure_trainer() -> list[Figure]:
    """Measure the ratio of the speeds of trainer and loop."""
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as directory:
        words = ["tiny-llama", f"steps={STEPS}", f"checkpoint_every={STEPS}"]
        config = parse_config([*words, "--output-dir", directory], os.environ)
        prepared = prepare_data(config)
        with (
            joined_ranks(config.launch) as ranks,
            Path(directory, "stdout").open("w") as stdout,
            redirect_stdout(stdout),
        ):
            source = build_task(config, prepared, ranks).source
            size = config.recipe.training.global_batch_size
            batches = [one for step in range(STEPS) for one in source.micro_batches(step * size)]
            turns = _Turns(batches, _BareLoop(config.recipe))
            build_trainer(
                config,
                prepared=prepared,
                ranks=ranks,
                progress=ProgressWriter(run_id="bench", rank=0, sinks=[turns]),
                stop=threading.Event(),
                watchdog=Watchdog(config.watchdog, on_stall=lambda _stall: None),
            ).train()
    pairs = turns.pairs[WARM_UP_STEPS:]
    tokens = sum(batch.count_targets() for batch in batches) / STEPS
    own_s, bare_s = (
        statistics.median(wall for wall, _ in spans) for spans in zip(*pairs, strict=True)
    )
    cpu = statistics.median(bare / own for (_, own), (_, bare) in pairs)
    return [
        Figure(
            name="trainer against a loop with its loss",
            value=statistics.median(bare / own for (own, _), (bare, _) in pairs),
            unit="",
            at_least=0.98,
            note=f"median of {len(pairs)} pairs of steps; by CPU time {cpu:.3f}; "
            f"{tokens / own_s:,.0f} tokens/s, the bare loop {tokens / bare_s:,.0f}",
        ),
    ]


ROUNDS: Final = 5
NUM_LAYERS: Final = 40
# By size of the state (weights and AdamW's two moments in float32): the width of square layers, and
# the rows of a step, so that it takes some 0.2 to 0.4 s on one core, as tiny-llama's does.
_LOADS: Final = {"21 MiB": (214, 2048), "300 MiB": (809, 256)}


def measure_checkpoints() -> list[Figure]:
    """Stall and slow-down of a save over the time of a synchronous one, for two sizes."""
    launch = Launch(rank=0, local_rank=0, world_size=1, elastic=False)
    with joined_ranks(launch) as ranks:
        return [figure for name in _LOADS for figure in _measure(name, ranks)]


class _Round(NamedTuple):
    """Milliseconds of one save."""

    stall: float
    slow_down: float
    duration: float
    synchronous: float


def _measure(name: str, ranks: Ranks) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as directory:
        checkpointer = Checkpointer(
            Path(directory, "async"), ranks=ranks, kept=1, configuration={}, rank_0_only=False
        )
        checkpointer.newest_complete_step()
        run = _Run(*_LOADS[name])
        # The first save takes new memory and starts threads; it is not counted.
        rounds = [
            _save_beside_steps(run, checkpointer, Path(directory, "sync"), ranks)
            for _ in range(ROUNDS + 1)
        ][1:]
    median = _Round(*map(statistics.median, zip(*rounds, strict=True)))
    return [
        Figure(
            name=f"checkpoint stall, {name}",
            value=median.stall / median.synchronous,
            unit="of a save",
            at_most=0.10,
            note=f"{median.stall:.2f} of {median.synchronous:.0f} ms; medians of {ROUNDS}, worst "
            f"{max(one.stall for one in rounds):.1f}",
        ),
        Figure(
            name=f"steps slowed beside it, {name}",
            value=median.slow_down / median.synchronous,
            unit="of a save",
            note=f"{median.slow_down:.0f} ms lost while written, hashed and read back in "
            f"{median.duration:.0f} ms",
        ),
    ]


class _Run:
    """Training, step by step."""

    def __init__(self, width: int, rows: int) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(
            *(nn.Linear(width, width, bias=False) for _ in range(NUM_LAYERS))
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self._inputs = torch.randn(rows, width)
        self.num_steps = 0

    def step(self, before_update: Callable[[], None]) -> float:
        """Forward, backward, update; returns its milliseconds."""
        began = time.monotonic()
        loss = (self.model(self._inputs) - self._inputs).square().mean()
        loss.backward()
        before_update()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        return 1000 * (time.monotonic() - began)


def _save_beside_steps(
    run: _Run, checkpointer: Checkpointer, synchronous_path: Path, ranks: Ranks
) -> _Round:
    undisturbed = statistics.median(run.step(lambda: None) for _ in range(5))
    state = {
        "model": get_model_state_dict(run.model),
        "optimizer": get_optimizer_state_dict(run.model, run.optimizer),
        "rng": {"rank-0": torch.get_rng_state()},
        "data": {},
    }
    shutil.rmtree(synchronous_path, ignore_errors=True)
    began = time.monotonic()
    save(state, checkpoint_id=synchronous_path, process_group=ranks.checkpoint_group)
    synchronous = 1000 * (time.monotonic() - began)

    checkpointer.start_save(run.num_steps, state, changing=())
    disturbed = []
    saved = None
    while saved is None:
        disturbed.append(run.step(checkpointer.wait_staged))
        saved = checkpointer.completed(wait=False)
    return _Round(
        stall=1000 * saved.stall_s,
        slow_down=sum(disturbed) - len(disturbed) * undisturbed,
        duration=1000 * saved.duration_s,
        synchronous=synchronous,
    )
