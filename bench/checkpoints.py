"""How long training stands still for a checkpoint, and what else it costs.

A model that really trains, on one rank, saves through the trainer's own `Checkpointer` while its
steps continue. The target is for the stall that `checkpoint_saved` lines report: the time in
`start_save`, and the time that the next step waits for the copy. The yardstick is
torch.distributed.checkpoint writing the same state at once, which is how long training would stand
still without any of this.

Reported beside it: what the steps lose to the writer while it copies, hashes, writes and reads back
next to them: time of those steps over that of as many undisturbed ones. On a machine whose cores
all compute that is most of the cost, and no stall shows it.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from bench.figures import AtMost, Figure
from training.checkpoint import Checkpointer, State
from training.config import Launch
from training.parallel import Ranks, joined_ranks

ROUNDS: Final = 5
NUM_LAYERS: Final = 40


@dataclass(frozen=True, slots=True)
class _Load:
    """A stack of square layers, its weights and AdamW's two moments in float32."""

    name: str
    width: int
    rows: int
    """In a step, so that it takes some 0.2 to 0.4 s on one core, as tiny-llama's does."""

    @property
    def state_mib(self) -> float:
        return NUM_LAYERS * self.width**2 * 3 * 4 / 2**20


_LOADS: Final = (_Load("21 MiB", 214, 2048), _Load("300 MiB", 809, 256))


def measure_checkpoints() -> list[Figure]:
    """Stall and slow-down of a save over the time of a synchronous one, for two sizes."""
    launch = Launch(rank=0, local_rank=0, world_size=1, elastic=False)
    figures = []
    with joined_ranks(launch) as ranks:
        for load in _LOADS:
            figures += _measure(load, ranks)
    return figures


@dataclass(slots=True)
class _Round:
    """Seconds of one save."""

    stall: float
    building: float
    slow_down: float
    duration: float
    synchronous: float


def _measure(load: _Load, ranks: Ranks) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as directory:
        checkpointer = Checkpointer(
            Path(directory, "async"), ranks=ranks, kept=1, configuration={}, rank_0_only=False
        )
        checkpointer.newest_complete_step()
        run = _Run(load)
        # The first save takes new memory and starts threads; it is not counted.
        rounds = [
            _save_beside_steps(run, checkpointer, Path(directory, "sync"), ranks)
            for _ in range(ROUNDS + 1)
        ][1:]

    def median(part: Callable[[_Round], float]) -> float:
        return statistics.median(map(part, rounds))

    synchronous = median(lambda one: one.synchronous)
    stall, slow_down = median(lambda one: one.stall), median(lambda one: one.slow_down)
    return [
        Figure(
            name=f"checkpoint stall, {load.name}",
            value=stall / synchronous,
            unit="of a save",
            target=AtMost(0.10),
            note=f"{1000 * stall:.2f} of {1000 * synchronous:.0f} ms for {load.state_mib:.0f} MiB; "
            f"medians of {ROUNDS}, worst {1000 * max(one.stall for one in rounds):.1f}; listing "
            f"the state takes {1000 * median(lambda one: one.building):.1f} ms besides",
        ),
        Figure(
            name=f"steps slowed beside it, {load.name}",
            value=slow_down / synchronous,
            unit="of a save",
            note=f"{1000 * slow_down:.0f} ms lost while written, hashed and read back in "
            f"{1000 * median(lambda one: one.duration):.0f} ms",
        ),
    ]


class _Run:
    """Training, step by step."""

    def __init__(self, load: _Load) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(
            *(nn.Linear(load.width, load.width, bias=False) for _ in range(NUM_LAYERS))
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self._inputs = torch.randn(load.rows, load.width)
        self.num_steps = 0

    def step(self, before_update: Callable[[], None]) -> float:
        """Forward, backward, update; returns its seconds."""
        began = time.monotonic()
        loss = (self.model(self._inputs) - self._inputs).square().mean()
        loss.backward()
        before_update()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        return time.monotonic() - began

    def state(self) -> State:
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
            "rng": {"rank-0": torch.get_rng_state()},
            "data": {},
        }


def _save_beside_steps(
    run: _Run, checkpointer: Checkpointer, synchronous_path: Path, ranks: Ranks
) -> _Round:
    undisturbed = statistics.median(run.step(lambda: None) for _ in range(5))
    began = time.monotonic()
    state = run.state()
    building = time.monotonic() - began
    synchronous = _save_at_once(synchronous_path, state, ranks)

    checkpointer.start_save(run.num_steps, state, changing=())
    disturbed = []
    saved = None
    while saved is None:
        disturbed.append(run.step(checkpointer.wait_staged))
        saved = checkpointer.completed(wait=False)
    return _Round(
        stall=saved.stall_s,
        building=building,
        slow_down=sum(disturbed) - len(disturbed) * undisturbed,
        duration=saved.duration_s,
        synchronous=synchronous,
    )


def _save_at_once(path: Path, state: State, ranks: Ranks) -> float:
    shutil.rmtree(path, ignore_errors=True)
    began = time.monotonic()
    save(state, checkpoint_id=path, process_group=ranks.checkpoint_group)
    return time.monotonic() - began
