"""Ranks that train a small model and checkpoint it, for this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from training import manifest
from training.checkpoint import Checkpointer, State
from training.config import Launch
from training.parallel import Ranks, joined_ranks

manifest.READ_AGAIN_AFTER_S = (0.0, 0.0)  # no test waits
CONFIGURATION = {"learning_rate": "0.01", "data": "noise"}


@contextmanager
def lone_rank() -> Iterator[Ranks]:
    """This process as the only rank."""
    with joined_ranks(Launch(rank=0, local_rank=0, world_size=1, elastic=False)) as ranks:
        yield ranks


class TinyRun:
    """A few layers that learn noise; the same numbers for any number of ranks, without dropout.

    Layers are narrower than some numbers of ranks: a rank may have no row of a weight.
    """

    def __init__(self, ranks: Ranks, *, dropout: float = 0.0, replicated: bool = False) -> None:
        torch.manual_seed(ranks.rank + 100)
        weights = torch.Generator().manual_seed(1)
        self.model = nn.Sequential(
            nn.Linear(6, 10), nn.Dropout(dropout), nn.Tanh(), nn.Linear(10, 2)
        )
        for parameter in self.model.parameters():
            nn.init.normal_(parameter, std=0.5, generator=weights)
        self.called: nn.Module = self.model
        if replicated:
            self.called = DistributedDataParallel(self.model)
        else:
            mesh = init_device_mesh("cpu", (ranks.world_size,))
            for layer in (self.model[0], self.model[3], self.model):
                fully_shard(layer, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.ranks = ranks
        self.steps = 0

    def train_until(
        self, steps: int, *, checkpointer: Checkpointer | None = None, every: int = 1
    ) -> list[float]:
        """Train; returns this rank's part of the loss of each step, over 12 rows in all."""
        losses = []
        while self.steps < steps:
            rows = torch.Generator().manual_seed(self.steps)
            inputs, targets = torch.randn(12, 6, generator=rows), torch.randn(12, 2, generator=rows)
            mine = slice(self.ranks.rank, None, self.ranks.world_size)
            # Means over equal shares; the gradients' mean over ranks is that of all rows.
            loss = (self.called(inputs[mine]) - targets[mine]).square().mean()
            loss.backward()
            if checkpointer:
                checkpointer.wait_staged()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1
            losses.append(float(loss.detach()) / self.ranks.world_size)
            if checkpointer and self.steps % every == 0:
                checkpointer.completed(wait=True)
                checkpointer.start_save(self.steps, self.state(), changing=())
        if checkpointer:
            checkpointer.completed(wait=True)
        return losses

    def state(self) -> State:
        rank = self.ranks.rank
        return {
            "model": get_model_state_dict(self.called),
            "optimizer": get_optimizer_state_dict(self.called, self.optimizer),
            "position": {"step": torch.tensor(self.steps)},
            "rng": {f"rank-{rank}": torch.get_rng_state()},
            "data": {
                "stream": "noise",
                f"lane-{rank}": torch.tensor([rank, self.steps]),
                f"shard-{rank}": {"file": f"{rank}.txt", "rows": [1, 2]},
            },
        }

    def resume(self, checkpointer: Checkpointer) -> State | None:
        """Go on from the newest checkpoint; returns what was loaded."""
        step = checkpointer.newest_complete_step()
        if step is None:
            return None
        state = self.state()
        checkpointer.load(step, state)
        set_model_state_dict(self.called, state["model"])
        set_optimizer_state_dict(self.called, self.optimizer, state["optimizer"])
        for generator in state["rng"].values():
            torch.set_rng_state(generator)
        self.steps = int(state["position"]["step"])
        return state


def checkpointer_in(
    directory: Path,
    ranks: Ranks,
    *,
    kept: int = 2,
    rank_0_only: bool = False,
    configuration: dict[str, str] | None = None,
) -> Checkpointer:
    """A checkpointer with the tests' configuration."""
    return Checkpointer(
        directory,
        ranks=ranks,
        kept=kept,
        configuration=configuration or CONFIGURATION,
        rank_0_only=rank_0_only,
    )
