"""Ranks working as one: the process group, FSDP2, and the few collectives of a training step.

Called by `training.__main__` and the trainer. It knows torch.distributed and nothing of data, loss
or checkpoints' contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from stationmaster.domain.errors import PermanentError
from training.config import Launch

# A collective that no peer joins for this long is dead. Above the slowest honest wait, which is
# another node's cold start of imports and tokenisation (a minute on a loaded machine).
_COLLECTIVE_TIMEOUT: Final = timedelta(minutes=10)
# Below this size a rank keeps the gathered weights from forward to backward: a second all-gather
# per block costs more than the memory it frees.
_KEEP_GATHERED_BYTES: Final = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among the others, and what it computes on."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    checkpoint_group: dist.ProcessGroup
    """gloo, used by checkpoints alone: an asynchronous save on the training's own group collides
    with the step that runs meanwhile, and aborts or hangs."""


@contextmanager
def joined_ranks(launch: Launch) -> Iterator[Ranks]:
    """Join the other processes, or stand alone when there are none; leave them at a good end."""
    if torch.cuda.is_available():
        device = torch.device("cuda", launch.local_rank)
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    else:
        device = torch.device("cpu")
        backend = "gloo"
    if launch.elastic:
        dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
    else:
        dist.init_process_group(
            backend,
            store=dist.HashStore(),  # type: ignore[attr-defined]  # public, not in torch's __all__
            rank=0,
            world_size=1,
            timeout=_COLLECTIVE_TIMEOUT,
        )
    yield Ranks(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        device=device,
        mesh=init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",)),
        checkpoint_group=dist.new_group(backend="gloo", timeout=_COLLECTIVE_TIMEOUT),
    )
    # Not after an error: destroying a group whose peers are gone may wait for them.
    dist.destroy_process_group()


def shard_model(model: LlamaForCausalLM, ranks: Ranks) -> None:
    """Shard every block over the ranks, and last, with the root, the embedding, norm and head.

    Gradients are summed, not averaged: the loss is already divided by the global token count. On a
    GPU the blocks compute in bfloat16 and reduce in float32.
    """
    num_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if ranks.device.type == "cuda"
        else MixedPrecisionPolicy()
    )
    for block in model.model.layers:
        fully_shard(
            block,
            mesh=ranks.mesh,
            mp_policy=policy,
            reshard_after_forward=num_bytes > _KEEP_GATHERED_BYTES,
        )
    fully_shard(model, mesh=ranks.mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
            module.set_gradient_divide_factor(1.0)


def sum_over_ranks(values: list[float], ranks: Ranks) -> list[float]:
    """Add up numbers over all ranks; every rank gets the same sums, exactly.

    float64 holds token counts up to 2**53 exactly.
    """
    total = torch.tensor(values, dtype=torch.float64, device=ranks.device)
    if ranks.world_size > 1:
        dist.all_reduce(total)
    return [float(value) for value in total.tolist()]


def from_rank_0(value: int, ranks: Ranks) -> int:
    """The value that rank 0 has, on every rank: decisions that all must share are taken once."""
    shared = torch.tensor([value], dtype=torch.int64, device=ranks.device)
    dist.broadcast(shared, src=0)
    return int(shared.item())


def check_same_data(tokens_sha256: str, ranks: Ranks) -> None:
    """Refuse to train when nodes prepared different tokens from what they call the same data set.

    Raises:
        PermanentError: naming the remedy.
    """
    mine = int(tokens_sha256[:13], 16)
    if sum_over_ranks([float(mine != from_rank_0(mine, ranks))], ranks)[0]:
        raise PermanentError(
            f"the nodes prepared different tokens (rank {ranks.rank} has {tokens_sha256[:12]}); "
            "give all nodes the same dataset directory, Python and tokenizers, or a shared "
            "STATIONMASTER_CACHE_DIR"
        )


def is_lost_peer(error: RuntimeError) -> bool:
    """Tell whether a collective failed because another worker is gone, not because of this one."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error)
    return "gloo" in text.lower() or "Connection reset by peer" in text or "NCCL" in text
