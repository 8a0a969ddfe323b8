"""Trainers on several gloo ranks, many one after the other in one start, for the sharding tests.

A start of processes costs seconds, a run of the tiny model tenths of one.
"""

from __future__ import annotations

import io
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from forked_ranks import results, start_ranks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from trainer_runs import parse_lines

from stationmaster.domain.catalogue.recipes import Recipe
from training.config import TrainerConfig, parse_config
from training.mesh import arranged
from training.models.language import LanguageTask
from training.optimizer import build_optimizer
from training.parallel import Ranks, joined_ranks
from training.progress import ProgressWriter
from training.sharding import parallelise
from training.task import IGNORED_LABEL, Batch
from training.trainer import Trainer
from training.watchdog import Watchdog

STEPS = 20
_RESULTS = "results.json"


@dataclass(frozen=True)
class Run:
    """One run of a trainer: a recipe's smoke preset, made smaller still."""

    recipe: str = "llama3.2-1b"
    keys: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, int] = field(default_factory=dict)
    local_world_size: int = 1
    as_large_model: bool = False
    """Exchange gradients in every micro-batch, as models that fill a GPU must."""
    count_operations: bool = False
    emulates_float8: bool = False

    def config(self, environ: Mapping[str, str]) -> TrainerConfig:
        """The small model learns in a few steps, from sequences that follow a rule."""
        keys = {
            "steps": str(STEPS),
            "sequence_length": "16",
            "global_batch_size": "8",
            "micro_batch_size": "8",
            "schedule": "constant",
            "warmup_steps": "1",
            "eval_every": "0",
            **self.keys,
        }
        words = [self.recipe, "preset=smoke", *(f"{key}={value}" for key, value in keys.items())]
        config = parse_config([*words, "--output-dir", os.devnull], environ)
        recipe = config.recipe
        model = {"vocab_size": 64, "hidden_size": 32, "ffn_size": 48, "layers": 3, **self.model}
        small = recipe.model.model_copy(update=model)
        return replace(config, recipe=recipe.model_copy(update={"model": small}))


@dataclass(frozen=True)
class Result:
    """What rank 0 saw, step by step."""

    losses: list[float]
    gradient_norms: list[float]
    collectives: dict[str, int]
    """How many there were of each kind."""
    share: float
    """The part of all parameters that rank 0 held."""


class NumberedSamples:
    """Samples that follow from their numbers: counting upwards by a step, from a first token.

    Implements `training.task.BatchSource`, for any number of ranks.
    """

    identity = "numbered samples"
    samples_per_epoch = None

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        training = recipe.training
        self._vocab_size = recipe.model.vocab_size  # type: ignore[union-attr]
        self._length = training.sequence_length  # type: ignore[union-attr]
        self._batch = training.global_batch_size
        self._keeps_documents_apart = training.document_mask  # type: ignore[union-attr]
        self._ranks = ranks
        rows = -(-training.global_batch_size // ranks.data_world_size)
        self.num_micro_batches = -(-rows // training.micro_batch_size)
        self.micro_batch_size = -(-rows // self.num_micro_batches)

    def micro_batches(self, samples_seen: int) -> Iterator[Batch]:
        own = range(
            samples_seen + self._ranks.data_rank,
            samples_seen + self._batch,
            self._ranks.data_world_size,
        )
        for first in range(
            0, self.num_micro_batches * self.micro_batch_size, self.micro_batch_size
        ):
            yield self._read(own[first : first + self.micro_batch_size])

    def _read(self, numbers: range) -> Batch:
        rows = torch.zeros(self.micro_batch_size, self._length + 1, dtype=torch.int64)
        for row, number in enumerate(numbers):
            steps = torch.arange(self._length + 1) * (1 + number % 3)
            rows[row] = (number * 7 + steps) % self._vocab_size
        targets = rows[:, 1:].clone()
        targets[len(numbers) :] = IGNORED_LABEL
        positions = None
        if self._keeps_documents_apart:
            # Each row's first document is of another length; all that follow have five tokens.
            first = torch.tensor([number % 7 + 1 for number in numbers]).unsqueeze(1)
            positions = torch.arange(self._length).expand(len(numbers), -1)
            positions = torch.where(positions < first, positions, (positions - first) % 5)
            assert len(numbers) == self.micro_batch_size
        return Batch(inputs=rows[:, :-1].clone(), targets=targets, positions=positions)

    def evaluation_batches(self) -> Iterator[Batch]:
        return iter(())

    def facts(self) -> dict[str, str | int]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        assert not state


class Nothing:
    """Stands where checkpoints and the final model do: it finds, saves and writes nothing."""

    last_step_started = 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments, **_named: None


class OperationCounts(TorchDispatchMode):
    """Counts by name what torch computes and exchanges inside."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    @property
    def collectives(self) -> Counter[str]:
        """The exchanges between ranks alone."""
        own = {name: n for name, n in self.counts.items() if name.startswith("c10d::")}
        return Counter({name.removeprefix("c10d::"): n for name, n in own.items()})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def train_here(run: Run) -> Result:
    """Run the trainer in this process, as the only rank."""
    config = run.config({})
    with joined_ranks(config.launch) as ranks:
        try:
            return _train(run, config, ranks)
        except BaseException:
            torch.distributed.destroy_process_group()  # or the next test cannot join
            raise


def train_on_ranks(runs: Mapping[str, Run], directory: Path, *, world_size: int) -> None:
    """Run them one after the other on the same ranks, and keep in `directory` what came of it."""
    results(start_ranks(_train_as_rank, dict(runs), directory / _RESULTS, world_size=world_size))


def results_in(directory: Path) -> dict[str, Result]:
    """What `train_on_ranks` kept."""
    stored = json.loads((directory / _RESULTS).read_text())
    return {name: Result(**one) for name, one in stored.items()}


def _train_as_rank(rank: int, runs: dict[str, Run], results: Path) -> None:
    found: dict[str, Any] = {}
    with joined_ranks(Run().config(os.environ).launch) as ranks:
        for name, run in runs.items():
            found[name] = asdict(_train(run, run.config(os.environ), ranks))
    if rank == 0:
        results.write_text(json.dumps(found))


def _train(run: Run, config: TrainerConfig, ranks: Ranks) -> Result:
    """What `training.build` does, with other samples and without checkpoints."""
    ranks = arranged(replace(ranks, local_world_size=run.local_world_size), config.recipe.training)
    source = NumberedSamples(config.recipe, ranks)
    task = LanguageTask(config.recipe, source, ranks=ranks, cache_dir=Path(os.devnull))
    large: dict[str, Any] = {"defers_exchange": lambda _parameters, _parallelism: False}
    parallel = parallelise(
        task.model,
        task.blocks,
        training=config.recipe.training,
        ranks=ranks,
        initialise=lambda: task.initialise(device=ranks.device),
        compile_backend="aot_eager",
        emulates_float8=run.emulates_float8,
        **(large if run.as_large_model else {}),
    )
    trainer = Trainer(
        config,
        ranks=ranks,
        progress=ProgressWriter(run_id="sharding", rank=ranks.rank),
        stop=threading.Event(),
        task=task,
        parallel=parallel,
        optimizer=build_optimizer(task.model, config.recipe.training),
        checkpointer=Nothing(),  # type: ignore[arg-type]
        final_model=Nothing(),  # type: ignore[arg-type]
        watchdog=Watchdog(config.watchdog, on_stall=lambda _stall: None),  # never started
    )
    operations = OperationCounts()
    with (
        redirect_stdout(io.StringIO()) as output,
        operations if run.count_operations else nullcontext(),
    ):
        trainer.train()
    lines = [line for line in parse_lines(output.getvalue()) if line["kind"] == "progress"]
    return Result(
        losses=[line["loss_nats"] for line in lines],
        gradient_norms=[line["grad_norm"] for line in lines],
        collectives=dict(operations.collectives),
        share=_share(task.model),
    )


def _share(model: torch.nn.Module) -> float:
    own = total = 0
    for parameter in model.parameters():
        total += parameter.numel()
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        own += local.numel()
    return own / total
