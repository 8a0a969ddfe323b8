"""Ranks working as one: the process group, and the few collectives outside of gradients.

It knows torch.distributed and nothing of models, data, loss or checkpoints' contents; how a model
is spread over the ranks is in `training.sharding`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from training.config import Launch

# A collective that no peer joins for this long is dead. Above the slowest honest wait, which is
# another node's cold start of imports and tokenisation (a minute on a loaded machine).
_COLLECTIVE_TIMEOUT: Final = timedelta(minutes=10)
# Ranks of a large save wait for the slowest writer: 100 GB at 150 MB/s are 11 min. A peer that
# crashed is noticed at once all the same, by its closed connection.
_SAVE_TIMEOUT: Final = timedelta(hours=2)
# How gloo, NCCL and torch's store put it that the other end of a connection is gone. That an error
# comes from one of them says nothing: they complain of shapes, devices and memory, too.
_PEER_GONE: Final = re.compile(
    r"connection (was )?(reset|refused|closed|likely closed)|closed by (remote )?peer|broken pipe"
    r"|socket closed|pair closure|timed out waiting \d+ ?ms for|connect.* timed out"
    r"|no route to host|ncclRemoteError|remote process exiting|communicator was aborted",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among the others, and what it computes on."""

    rank: int
    world_size: int
    local_world_size: int
    """The number of ranks on this node."""
    device: torch.device
    checkpoint_group: dist.ProcessGroup
    """A gloo group, used by checkpoints alone: an asynchronous save on the training's own group
    collides with the step that runs meanwhile, and aborts or hangs."""
    tensor_parallel: int = 1
    """The number of neighbouring ranks that split every product; divides both sizes."""
    context_parallel: int = 1
    """The number of ranks that share the tokens of each sequence, `tensor_parallel` apart."""
    context_group: dist.ProcessGroup | None = None
    """The group of ranks that share this rank's sequences; None where it has whole ones."""

    @property
    def sample_peers(self) -> int:
        """The number of ranks that read the same samples and compute them together; 1 for none."""
        return self.tensor_parallel * self.context_parallel

    @property
    def data_rank(self) -> int:
        """This rank's place among those that read samples; neighbours that share them, the same."""
        return self.rank // self.sample_peers

    @property
    def data_world_size(self) -> int:
        """The number of places that read samples of their own."""
        return self.world_size // self.sample_peers

    @property
    def context_rank(self) -> int:
        """This rank's place among those that share its sequences."""
        return self.rank // self.tensor_parallel % self.context_parallel


@contextmanager
def joined_ranks(launch: Launch) -> Iterator[Ranks]:
    """Join the other processes, or stand alone when there are none; leave them at a good end.

    On GPUs the group is bound to this process's own: NCCL connects here and not in the first
    collective, groups of fewer ranks are split from what is connected, and no barrier guesses which
    GPU is meant.
    """
    bound = None
    if torch.cuda.is_available():
        device = bound = torch.device("cuda", launch.local_rank)
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
        backend = "cpu:gloo,cuda:nccl"
    else:
        device = torch.device("cpu")
        backend = "gloo"
    if launch.elastic:
        dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT, device_id=bound)
    else:
        dist.init_process_group(
            backend,
            store=dist.HashStore(),  # type: ignore[attr-defined]  # public, not in torch's __all__
            rank=0,
            world_size=1,
            timeout=_COLLECTIVE_TIMEOUT,
            device_id=bound,
        )
    yield Ranks(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_world_size=launch.local_world_size,
        device=device,
        checkpoint_group=dist.new_group(backend="gloo", timeout=_SAVE_TIMEOUT),
    )
    # Not after an error: destroying a group whose peers are gone may wait for them.
    dist.destroy_process_group()


def sum_over_ranks(values: list[float], ranks: Ranks) -> list[float]:
    """Add up numbers of the host over all ranks; every rank gets the same sums, exactly.

    Ranks that compute the same samples count together as one. float64 holds counts up to 2**53
    exactly. The sum goes over the host's network, so that nobody waits for a GPU.
    """
    if ranks.world_size == 1:
        return values
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return [float(value) for value in (total / ranks.sample_peers).tolist()]


def gather_over_ranks(values: list[float], ranks: Ranks) -> list[list[float]]:
    """Return the numbers of the host that each rank has; every rank gets those of all."""
    every = torch.zeros(ranks.world_size, len(values), dtype=torch.float64)
    every[ranks.rank] = torch.tensor(values, dtype=torch.float64)
    if ranks.world_size > 1:
        dist.all_reduce(every)
    found: list[list[float]] = every.tolist()
    return found


def least_over_ranks(value: float | None, ranks: Ranks) -> float | None:
    """Return the smallest of the numbers that ranks have; None where none has one."""
    if ranks.world_size == 1:
        return value
    least = torch.tensor(math.inf if value is None else value, dtype=torch.float64)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return float(least) if math.isfinite(float(least)) else None


def start_sum_over_ranks(value: torch.Tensor, ranks: Ranks) -> Callable[[], torch.Tensor]:
    """Begin to add up a tensor of the device over all ranks, in place; call the result for it.

    Ranks that compute the same samples count together as one.
    """
    if ranks.world_size == 1:
        return lambda: value
    work = dist.all_reduce(value, async_op=True)

    def finish() -> torch.Tensor:
        work.wait()
        return value / ranks.sample_peers

    return finish


def sum_over_group(value: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Sum a tensor of the device over some of the ranks, without a gradient."""
    total = value.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def is_lost_peer(error: RuntimeError) -> bool:
    """Say whether a collective failed because another worker is gone, not because of this one."""
    text = str(error)
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        # The store is another worker's; only an address of one's own is listened on.
        return "failed to listen" not in text
    return _PEER_GONE.search(text) is not None
