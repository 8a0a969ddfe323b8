"""The trainer's speed on one process against a bare PyTorch loop.

Trainer and loop train the same tiny model on the same tokens, one step each in turn, so that what
else the machine does hits both. The trainer's side is all of `Trainer.train`: loader, its checks,
and a progress line every step, written to a file. The loop has the same transformers model, the
same batches (read before, kept in memory), loss, optimizer and clipping; no data loading, no
sharding, no collectives, no checks, no reports.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

import torch

from bench.figures import Figure
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.progress_lines import Kind
from training.build import build_task, build_trainer, prepare_data
from training.config import parse_config
from training.models.architectures import build_model
from training.models.cross_entropy import sum_cross_entropy
from training.models.initialisation import initialise
from training.parallel import joined_ranks
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
