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
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from bench.figures import Figure
from training.checkpoint import Checkpointer
from training.config import Launch
from training.parallel import Ranks, joined_ranks

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
