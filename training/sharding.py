"""A model spread over the ranks: what is computed again, compiled, sharded and exchanged.

Called by `training.build` once, and by the trainer around every micro-batch. It knows modules and
ranks, and nothing of data, loss or checkpoints. The blocks are changed in place, so that names in
checkpoints do not depend on any of this.

The order is fixed, and each part of it has a reason:

0. float8, tensor and expert parallelism: they replace layers and weights, which all that follows
   wraps.
1. Activation checkpointing, innermost: what is compiled next contains the recomputation, and the
   compiler decides what it keeps of it.
2. torch.compile of each block's forward: a model of 80 equal blocks compiles one of them. The hooks
   of FSDP stay outside, where they cannot break the graph.
3. FSDP2 for each block, then for the root with embedding, final norm and head in one group, so that
   tied weights are one parameter there. Parameters have no memory yet: no rank ever holds the whole
   model.
4. The first values.
5. DistributedDataParallel, last of all: it refuses parameters without memory.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from stationmaster.domain.catalogue.sharing import FLOAT8
from stationmaster.domain.catalogue.training_config import (
    Parallelism,
    TrainingConfig,
    expert_parallel_of,
)
from stationmaster.domain.planning.estimate import defers_gradient_exchange
from training.blocks import prepare_blocks
from training.mesh import (
    EXPERT,
    REPLICATE,
    SHARD,
    TENSOR,
    build_expert_mesh,
    build_mesh,
    dimensions,
    placement_of,
    without_tensor,
)
from training.parallel import Ranks

logger = logging.getLogger("training")


class ParallelModel:
    """A model as the ranks run it together; of this very class, the model of a lone rank."""

    loss_scale: float = 1.0
    """The factor of the loss, a sum over this rank's samples divided by the global count of
    targets, before backward, so that the exchanged gradients are sums over all ranks."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        """The module to call."""

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Wrap forward and backward of one micro-batch; `last` of its optimizer step."""
        yield

    def clip_gradients(self, limit: float) -> float:
        """Scale the gradients to a global norm of at most `limit`; 0 only measures.

        Returns the norm before, the same on every rank, which may be inf or nan; gradients are then
        of no use. Waits for the device once.
        """
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = math.sqrt(float(self._squared_norm(gradients)))
        if limit and norm > limit:
            torch._foreach_mul_([_local(gradient) for gradient in gradients], limit / norm)
        return norm

    def _squared_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        return _squared_norm(gradients)


class _ReplicatedModel(ParallelModel):
    """DistributedDataParallel: each rank has all weights; gradients are averaged over ranks."""

    def __init__(self, module: nn.Module, ranks: Ranks) -> None:
        normalises_batches = any(isinstance(part, _BatchNorm) for part in module.modules())
        self._ddp = DistributedDataParallel(
            module,
            device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
            # Running means follow rank 0's, which is what a checkpoint holds; tables of rotary
            # embeddings never change, and sending them each step would be for nothing.
            forward_sync_buffers=normalises_batches,
            gradient_as_bucket_view=True,
        )
        super().__init__(self._ddp)
        self.loss_scale = float(ranks.world_size)

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Exchange gradients in the last micro-batch only; see `ParallelModel`."""
        with nullcontext() if last else self._ddp.no_sync():
            yield


class _ShardedModel(ParallelModel):
    """FSDP2: each rank has a part of every weight; gradients are summed into these parts."""

    def __init__(
        self, module: FSDPModule, mesh: DeviceMesh, *, keeps_gathered: bool, defers_exchange: bool
    ) -> None:
        assert isinstance(module, nn.Module)
        super().__init__(module)
        self._fsdp = module
        self._keeps_gathered = keeps_gathered
        self._defers_exchange = defers_exchange
        self._has_copies = REPLICATE in dimensions(mesh)
        self._splits = [name for name in (SHARD, TENSOR) if name in dimensions(mesh)]
        self._mesh = mesh

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Exchange gradients by the model's size; see `ParallelModel`.

        A small model gathers its weights once a step and exchanges gradients in the last
        micro-batch. A large one cannot hold all weights or gradients at once: it exchanges them
        within the group of shards in each, and over the copies of this group in the last one only.
        """
        if self._keeps_gathered:
            self._fsdp.set_reshard_after_backward(last)
        if self._defers_exchange:
            self._fsdp.set_requires_gradient_sync(last)
        elif self._has_copies:
            self._fsdp.set_requires_all_reduce(last)
        yield

    def _squared_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        # The norms' weights: every rank that splits a product has the same gradient of these.
        copied = [g for g in gradients if self._is_copied(g)]
        total = _squared_norm([g for g in gradients if not self._is_copied(g)])
        if copied:
            total = total + _squared_norm(copied) / self._mesh[TENSOR].size()
        # Offloaded gradients are in host memory; their backend for that is gloo.
        for name in self._splits:
            dist.all_reduce(total, group=self._mesh.get_group(name))
        return total

    def _is_copied(self, gradient: torch.Tensor) -> bool:
        """Say whether ranks of the mesh's dimension `tensor`, always the last, have all of it."""
        if TENSOR not in self._splits or not isinstance(gradient, DTensor):
            return False
        return gradient.placements[-1].is_replicate()


def parallelise(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    *,
    training: TrainingConfig,
    ranks: Ranks,
    initialise: Callable[[], None],
    compile_backend: str = "inductor",
    emulates_float8: bool = False,
    defers_exchange: Callable[[int, Parallelism], bool] = defers_gradient_exchange,
) -> ParallelModel:
    """Spread a model on the meta device over the ranks and give it its first values.

    Args:
        model: changed in place.
        blocks: its repeated units; modules of `model`.
        training: parallelism, precision, activation_checkpointing, compile and cpu_offload count.
        ranks: all of which call this together.
        initialise: called once, when every parameter has its place, to give all parameters and
            buffers memory on the ranks' device and their values.
        compile_backend: what torch.compile calls; tests name one that needs no C++ compiler.
        emulates_float8: computes float8 products where no GPU does; for tests.
        defers_exchange: decides by the number of parameters which models are small; see
            `_ShardedModel.micro_batch`.

    Raises:
        BadParameter: the keys do not fit the number of ranks.
    """
    in_bfloat16 = _computes_in_bfloat16(training, ranks)
    if training.precision == FLOAT8:
        from training.float8 import multiply_in_float8

        multiply_in_float8(blocks, device=ranks.device, emulated=emulates_float8)
    prepare_blocks(blocks, training, compile_backend=compile_backend)
    if training.parallelism == "ddp":
        return _replicate(model, ranks, in_bfloat16=in_bfloat16, initialise=initialise)
    mesh = build_mesh(training, ranks)
    if ranks.context_group is not None:
        from training.models.context_parallel import share_sequences

        share_sequences(model, ranks.context_group)
    if ranks.tensor_parallel > 1:
        from training.tensor_parallel import split_products

        split_products(model, mesh[TENSOR])
    experts = None
    if expert_parallel_of(training) > 1:
        from training.expert_parallel import share_experts

        experts = build_expert_mesh(training, mesh)
        share_experts(model, experts[EXPERT])
    if ranks.world_size == 1 and not in_bfloat16 and not _offloads(training, ranks):
        initialise()
        return ParallelModel(model)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    small = defers_exchange(num_parameters, training.parallelism)
    # A rank that has all shards frees nothing worth a second cast of the weights.
    keeps_gathered = small or mesh[SHARD].size() == 1
    _shard(
        model,
        blocks,
        mesh=without_tensor(mesh),
        precision=_mixed_precision(in_bfloat16=in_bfloat16),
        offload=CPUOffloadPolicy() if _offloads(training, ranks) else OffloadPolicy(),
        keeps_gathered=keeps_gathered,
        experts=experts,
    )
    initialise()
    if _offloads(training, ranks):
        _move_weights_to_host(model, ranks.device)
    assert isinstance(model, FSDPModule)
    return _ShardedModel(model, mesh, keeps_gathered=keeps_gathered, defers_exchange=small)


def _computes_in_bfloat16(training: TrainingConfig, ranks: Ranks) -> bool:
    on_gpus = ranks.device.type == "cuda"
    return training.precision in ("bf16", FLOAT8) or (training.precision == "auto" and on_gpus)


def _mixed_precision(*, in_bfloat16: bool) -> MixedPrecisionPolicy:
    if in_bfloat16:
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return MixedPrecisionPolicy()


def _replicate(
    model: nn.Module, ranks: Ranks, *, in_bfloat16: bool, initialise: Callable[[], None]
) -> ParallelModel:
    if in_bfloat16:
        model.forward = torch.autocast(ranks.device.type, torch.bfloat16)(model.forward)
    initialise()
    if ranks.world_size == 1:
        return ParallelModel(model)
    return _ReplicatedModel(model, ranks)


def _offloads(training: TrainingConfig, ranks: Ranks) -> bool:
    if training.cpu_offload and ranks.device.type == "cpu":
        logger.warning("cpu_offload=true changes nothing here: this machine trains on CPUs")
    return training.cpu_offload and ranks.device.type == "cuda"


def _shard(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    *,
    mesh: DeviceMesh,
    precision: MixedPrecisionPolicy,
    offload: OffloadPolicy,
    keeps_gathered: bool,
    experts: DeviceMesh | None,
) -> None:
    """Apply FSDP2 to each block and, last, to the root with all that is in no block.

    `keeps_gathered`: whole weights stay from forward to backward; a second all-gather would cost
    more than the memory it frees.
    """
    shared: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": precision,
        "offload_policy": offload,
        "shard_placement_fn": placement_of(mesh, experts),
    }
    for block in blocks:
        # The last block's backward comes right after its forward: freeing it is for nothing.
        reshard = not keeps_gathered and block is not blocks[-1]
        fully_shard(block, reshard_after_forward=reshard, **shared)
    fully_shard(model, **shared)
    if experts is not None:
        _prefetch_next(blocks)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sums, because the loss is already divided by the global count of targets; and plain
            # ones, because gloo has no sum that multiplies first.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def _prefetch_next(blocks: Sequence[nn.Module]) -> None:
    """Let each block ask for the next one's weights, in forward and in backward.

    Blocks that share experts read from the device how many tokens travel. FSDP's own prefetching
    waits with them, and would begin when the next block's weights are due. Source: torchtitan.
    """
    for block, following in pairwise(blocks):
        assert isinstance(block, FSDPModule)
        assert isinstance(following, FSDPModule)
        block.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([block])


def _move_weights_to_host(model: nn.Module, device: torch.device) -> None:
    """Keep offloaded weights in host memory, and buffers on the device."""
    model.to("cpu")
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            persistent = name not in module._non_persistent_buffers_set
            module.register_buffer(name, buffer.to(device), persistent=persistent)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _squared_norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum the squares of all elements that this rank has, () float64, on the tensors' device."""
    norms = torch.stack(torch._foreach_norm([_local(tensor) for tensor in tensors]))
    return norms.double().square().sum()
